"""Compare a table of nccl-tests with a machine's collective library, fit that, and write it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from simgpt import tables
from topologies.collectives.fit import (
    Constant,
    NetworkFit,
    Sample,
    every_other,
    fit_network,
    fitted_samples,
    mean_error,
    predicted_s,
)
from topologies.collectives.nccl_tests import read_nccl_tests, with_nodes
from topologies.files.facts import Fact, write_facts
from topologies.files.keys import fields_of
from topologies.files.printable import shown, toml_text
from topologies.hardware.software import Curve, Kind
from topologies.machine import Machine
from topologies.records import record
from topologies.session import in_session

LEAST_FOR_HALVES = 4  # rows that a test on held-out sizes needs
SURE = 0.15  # mean error of sizes held out, up to which a fitted value has confidence "medium"
SET_BY_USER = "set by the user"


@record
class FittedNetwork:
    """A fit with its samples. `held_out` is the mean error on every second size after a fit to the
    others; None if there are too few samples."""

    name: str
    machine: Machine
    fit: NetworkFit
    samples: tuple[Sample, ...]
    held_out: float | None

    @property
    def seen(self) -> list[Sample]:
        """The samples that were fitted."""
        return fitted_samples(self.samples)

    @property
    def errors(self) -> tuple[float, float]:
        """The mean errors before and after the fit."""
        return mean_error(self.machine, self.seen), mean_error(self.fit.machine, self.seen)


@in_session
def fitted_to(
    machine: Machine, path: Path, *, kind: Kind | None = None, ranks: int = 0
) -> FittedNetwork:
    """Fit the machine to all tables of a file; `kind` and `ranks` are given if it lacks them."""
    found = read_nccl_tests(path, kind=kind, ranks=ranks)
    found = [with_nodes(table, machine.devices_per_node) for table in found]
    samples = tuple(
        Sample(table.kind, table.ranks, table.nodes, row.size_bytes, row.seconds)
        for table in found
        for row in table.rows
    )
    seen, held = every_other(fitted_samples(samples))
    enough = len(seen) + len(held) >= LEAST_FOR_HALVES and held
    held_out = mean_error(fit_network(machine, seen).machine, held) if enough else None
    return FittedNetwork(path.name, machine, fit_network(machine, samples), samples, held_out)


def fit_text(found: FittedNetwork) -> str:
    """Measured, predicted and fitted times, the remaining error, and the constants."""
    columns = ["collective", "devices", "nodes", "bytes", "measured"]
    columns += ["predicted", "error", "fitted", "error"]
    rows = [
        (
            each.kind,
            f"{each.ranks:,}",
            f"{each.nodes:,}",
            f"{each.size_bytes:,.0f}",
            tables.seconds(each.seconds),
            *_beside(found.machine, each),
            *_beside(found.fit.machine, each),
        )
        for each in found.samples
    ]
    parts = [tables.table(columns, rows), tables.paragraph(_left(found))]
    if found.fit.determined:
        keys = [
            (_key(c), *(str(_written(c.field, value)) for value in (c.before, c.after)))
            for c in found.fit.determined
        ]
        parts.append(tables.table(["key of a machine file", "before", "fitted"], keys))
    parts += [tables.paragraph(words) for words in _not_known(found)]
    return "\n\n".join(parts)


def fit_record(found: FittedNetwork) -> dict[str, Any]:
    """The measured, predicted and fitted times and the constants, as JSON."""
    before, after = found.errors
    return {
        "table": found.name,
        "rows": [
            {
                "collective": each.kind,
                "devices": each.ranks,
                "nodes": each.nodes,
                "bytes": each.size_bytes,
                "measured_s": each.seconds,
                "predicted_s": predicted_s(found.machine, each),
                "fitted_s": predicted_s(found.fit.machine, each),
                "seen": each in found.seen,
            }
            for each in found.samples
        ],
        "mean_error": before,
        "fitted_mean_error": after,
        "held_out_mean_error": found.held_out,
        "software": {_key(c): _written(c.field, c.after) for c in found.fit.determined},
        "not_determined": [_key(c) for c in found.fit.kept],
    }


def machine_file(found: FittedNetwork, name: str, output: Path) -> str:
    """The text of a machine file that builds on machine `name`, with the fitted keys and those of
    `--set`."""
    _, error = found.errors
    groups = dict.fromkeys(f"{s.kind} on {s.ranks} devices of {s.nodes} nodes" for s in found.seen)
    source = (
        f"fit to {shown(found.name)} ({', '.join(groups)}) by simgpt bench-network --fit: "
        f"mean error {error:.1%}"
    )
    sure = found.held_out is not None and found.held_out <= SURE
    confidence = "medium" if sure else "low"
    facts = [fact for fact in found.machine.entries if fact.source.startswith(SET_BY_USER)]
    facts += [Fact(key, value, source, confidence) for key, value in _values(found.fit).items()]
    return toml_text({"base": _base(name, output), **write_facts(facts)})


def _values(fit: NetworkFit) -> dict[str, object]:
    """The fitted keys, and all keys of curves that the machine did not have."""
    values: dict[str, object] = {}
    for slot in fit.new:
        curve = getattr(fit.machine.software, slot)
        for field in fields_of(Curve):
            value = getattr(curve, field.attribute)
            if isinstance(value, float) and 0 < value < float("inf"):
                values[f"software.{slot}.{field.key.name}"] = _written(field.attribute, value)
    return values | {_key(c): _written(c.field, c.after) for c in fit.determined}


def _base(name: str, output: Path) -> str:
    """The machine's name as written into `output`; a path is made relative to its folder."""
    path, colon, variant = name.partition(":")
    if not path.endswith((".toml", ".json")):
        return name
    return os.path.relpath(path, output.parent) + colon + variant


def _beside(machine: Machine, sample: Sample) -> tuple[str, str]:
    seconds = predicted_s(machine, sample)
    return tables.seconds(seconds), f"{seconds / sample.seconds - 1:+.1%}"


def _left(found: FittedNetwork) -> str:
    before, after = found.errors
    sizes = f"{len(found.seen)} rows"
    if len(found.seen) < len(found.samples):
        sizes += " of 64 KiB and more (smaller ones are not fitted)"
    words = f"mean error of {sizes}: {before:.1%} before the fit, {after:.1%} after it"
    if found.held_out is not None:
        words += f"; on every second size, after a fit to the others: {found.held_out:.1%}"
    return words


def _not_known(found: FittedNetwork) -> list[str]:
    """What the tables cannot determine."""
    said = []
    if found.fit.kept:
        keys = ", ".join(_key(c) for c in found.fit.kept)
        said.append(f"not determined by this table, so unchanged: {keys}")
    groups = {(s.ranks, s.nodes) for s in found.seen}
    if len(groups) == 1:
        ranks, nodes = next(iter(groups))
        where = "inside a node" if nodes > 1 else "across nodes"
        said.append(
            f"a table of one group of {ranks} devices says nothing about other group sizes, nor "
            f"about collectives {where}; give a file with tables of those"
        )
    fastest = max(found.seen, key=lambda s: s.size_bytes / s.seconds)
    if predicted_s(found.fit.machine, fastest) > 1.15 * fastest.seconds:
        said.append(
            "large messages were measured faster than the machine's links allow: check its NICs "
            "and links by simgpt machines"
        )
    return said


def _key(constant: Constant) -> str:
    return f"software.{constant.slot}.{_NAMES[constant.field]}"


_NAMES = {field.attribute: field.key.name for field in fields_of(Curve)}


def _written(field: str, value: float) -> object:
    """A value as it is written into a machine file."""
    if field.endswith("_s"):
        return f"{value * 1e6:.4g} us"
    if field.endswith("_bytes"):
        return f"{value / 1024:.4g} KiB"
    return float(f"{value:.4g}")
