"""Measured collectives beside predicted ones, table by table.

The split: of a table's device counts, sorted, the fit saw the largest and every other one below
it, at most half of them; where the table has a count of one node, which alone shows the rates
inside a node, that one stands in for the smallest of these. A table of a single count splits its
sizes instead: the largest and every other one below it. All other rows are held out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.collectives.benchmark import full_ring
from topologies.collectives.collective_time import collective_seconds
from topologies.errors import MachineError
from topologies.hardware.software import Kind
from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.records import record
from topologies.routing.rings import Ring
from topologies.shipped import machine_names
from validation.network_tables import (
    Measured,
    MeasuredRow,
    Skipped,
    TableError,
    explanation_of,
    fitted_tables,
    measured,
    read_tables,
)

SMALLEST_BYTES = 2**20  # rows below it are not compared
ARTEFACT_BYTES, ARTEFACT_DEVICES = 2**20, 128  # the first size timed of a large group on Frontier


@record
class Point:
    """A row with its prediction, and whether the fit saw it."""

    row: MeasuredRow
    predicted_s: float
    fitted: bool

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.row.seconds - 1

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON."""
        return {
            "devices": self.row.devices,
            "bytes": self.row.size_bytes,
            "measured_s": self.row.seconds,
            "predicted_s": self.predicted_s,
            "error": self.error,
            "fitted": self.fitted,
        }


@record
class Comparison:
    """A table's rows beside their predictions; without rows, the reason why there are none."""

    name: str
    variant: str = ""
    kind: str = ""
    points: tuple[Point, ...] = ()
    artefacts: int = 0
    fitted_devices: tuple[int, ...] = ()
    reason: str = ""
    explanation: str = ""

    @property
    def mape(self) -> float | None:
        """Mean absolute error of all rows compared."""
        return _mape(self.points)

    @property
    def fitted_mape(self) -> float | None:
        """That of the rows that the fit saw."""
        return _mape([point for point in self.points if point.fitted])

    @property
    def heldout_mape(self) -> float | None:
        """That of the rows that the fit never saw."""
        return _mape([point for point in self.points if not point.fitted])

    def as_dict(self) -> dict[str, Any]:
        """The table as it stands in JSON."""
        errors = [point.error for point in self.points]
        return {
            "name": self.name,
            "status": "compared" if errors else "skipped",
            "reason": self.reason,
            "explanation": self.explanation,
            "machine": self.variant,
            "collective": self.kind,
            "rows": len(errors),
            "artefacts": self.artefacts,
            "mape": self.mape,
            "median_error": statistics.median(map(abs, errors)) if errors else None,
            "worst": max(errors, key=abs) if errors else None,
            "bias": statistics.fmean(errors) if errors else None,
            "fitted_devices": list(self.fitted_devices),
            "fitted_mape": self.fitted_mape,
            "heldout_mape": self.heldout_mape,
            "points": [point.as_dict() for point in self.points],
        }


def _mape(points: Sequence[Point]) -> float | None:
    return statistics.fmean(abs(point.error) for point in points) if points else None


def validate_network(path: Path | None = None, name: str = "") -> list[Comparison]:
    """Predicts every table of a file, or the one of that name."""
    tables = read_tables(path)
    if name and name not in tables:
        raise TableError(f'no table is called "{name}"; known: {", ".join(tables)}')
    per_node = devices_per_node()
    chosen = {name: tables[name]} if name else tables
    shipped = read_tables()
    return [
        _compared(key, table, per_node, shipped[key] if key in fitted_tables() else None)
        for key, table in chosen.items()
    ]


def devices_per_node() -> dict[str, int]:
    """The devices in a node by machine."""
    return {name: load_machine(name).devices_per_node for name in machine_names()}


def _compared(
    key: str,
    table: Mapping[str, Any],
    per_node: Mapping[str, int],
    shipped: Mapping[str, Any] | None,
) -> Comparison:
    found = measured(key, table, per_node)
    if isinstance(found, Skipped):
        return Comparison(key, reason=found.reason)
    try:
        machine = load_machine(found.variant)
    except MachineError as error:
        return Comparison(key, found.variant, found.kind, reason=str(error))
    seen = measured(key, shipped, per_node) if shipped else None
    training = frozenset(fit_rows(seen)) if isinstance(seen, Measured) else frozenset()
    kept = comparable(found)
    if not kept:
        return Comparison(key, found.variant, found.kind, reason="it has no row of 1 MiB or more")
    try:
        points = tuple(Point(row, predicted(machine, found, row), row in training) for row in kept)
    except MachineError as error:
        return Comparison(key, found.variant, found.kind, reason=str(error))
    return Comparison(
        name=key,
        variant=found.variant,
        kind=found.kind,
        points=points,
        artefacts=len([row for row in found.rows if is_artefact(found, row)]),
        fitted_devices=tuple(sorted({point.row.devices for point in points if point.fitted})),
        explanation=explanation_of(key),
    )


def comparable(table: Measured) -> list[MeasuredRow]:
    """The rows of 1 MiB and more, less the start-up artefacts."""
    rows = [row for row in table.rows if row.size_bytes >= SMALLEST_BYTES]
    return [row for row in rows if not is_artefact(table, row)]


def is_artefact(table: Measured, row: MeasuredRow) -> bool:
    """Whether a row shows a library starting up: 1 MiB, the first size timed, on 128 GCDs or more.

    Source: the note of the tables of axonn-ai/sc2025-pccl-reproducer for Frontier.
    """
    if row.size_bytes > ARTEFACT_BYTES or row.devices < ARTEFACT_DEVICES:
        return False
    first = min(each.size_bytes for each in table.rows if each.devices == row.devices)
    return row.size_bytes == first and table.variant.startswith("frontier")


def is_sparse(parameters: int, tables: Sequence[Measured], least_bytes: float = 0) -> bool:
    """Whether the rows that a fit may see, of so many bytes and more, are too few to be trusted.

    Two rows for each parameter are wanted, and two counts of devices, but for messages, which have
    two devices always. Such a fit takes its shape from another curve, where there is one, and its
    confidence is low: it meets the rows that it saw and says little of others.
    """
    rows = [row for table in tables for row in fit_rows(table) if row.size_bytes >= least_bytes]
    one_count = len({row.devices for row in rows}) < 2
    messages = all(table.kind == "send_recv" for table in tables)
    return len(rows) < 2 * parameters or (one_count and not messages)


def fit_rows(table: Measured) -> list[MeasuredRow]:
    """The rows that a fit may see, by the split that this module's first lines state."""
    counts = sorted({row.devices for row in table.rows})
    rows = [row for row in table.rows if not is_artefact(table, row)]
    if len(counts) == 1:
        sizes = sorted({row.size_bytes for row in rows}, reverse=True)[::2]
        return [row for row in rows if row.size_bytes in sizes]
    seen = fitted_counts(counts, {row.devices for row in rows if row.nodes == 1})
    return [row for row in rows if row.devices in seen and row.size_bytes >= SMALLEST_BYTES]


def fitted_counts(counts: Sequence[int], of_one_node: set[int]) -> list[int]:
    """At most half of the device counts.

    >>> fitted_counts([8, 16, 32, 64, 128, 256], {8})
    [8, 64, 256]
    >>> fitted_counts([16, 32, 64, 128, 256], set())
    [64, 256]
    """
    chosen = sorted(sorted(counts, reverse=True)[::2][: len(counts) // 2])
    inside = max(of_one_node, default=0)
    if inside and len(chosen) > 1 and inside not in chosen:
        chosen[0] = inside
    return chosen


def predicted(machine: Machine, table: Measured, row: MeasuredRow) -> float:
    """The time that we predict for a row."""
    ring = ring_of(machine, row, table.kind)
    return collective_seconds(machine, table.kind, row.payload_bytes, ring)


def ring_of(machine: Machine, row: MeasuredRow, kind: Kind) -> Ring:
    """The ring of one group that fills the first nodes evenly, alone on the machine."""
    return full_ring(machine, row.devices, row.nodes, kind)


def overall(comparisons: Sequence[Comparison]) -> float | None:
    """Mean of the compared tables' mean absolute errors."""
    errors = list(_errors(comparisons))
    return statistics.fmean(errors) if errors else None


def _errors(comparisons: Sequence[Comparison]) -> Iterator[float]:
    for comparison in comparisons:
        if comparison.mape is not None:
            yield comparison.mape
