"""Fit the constants of a machine's collective library to measurements, and say which of them the
measurements determine.

The fit minimises the squares of ln(predicted / measured) over NOISE, plus the squares of how far
each constant moves from the machine's value, over SPREAD. A table that says nothing about a
constant leaves it unchanged. A constant is determined if the table narrows its spread to less than
half. If some are not, the least determined one is fixed at the machine's value and the fit is
repeated, until all others are determined. Method: Gauss-Newton with Levenberg's damping, on
logarithms, in numpy.

Source: Levenberg (1944), Marquardt (1963); a Gaussian prior on each logarithm. Not modelled: that a
library switches protocols between sizes, other than by the two latencies of a hop or a step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.collectives.benchmark import full_ring
from topologies.collectives.collective_time import (
    algorithm_seconds,
    collective_seconds,
    picked,
)
from topologies.errors import MachineError
from topologies.hardware.software import Curve, Kind
from topologies.machine import Machine
from topologies.placement import with_room
from topologies.records import record
from topologies.routing.rings import Ring
from topologies.session import in_session

Vector = NDArray[np.float64]
NOISE = 0.05  # of a measured time, as a share
DETERMINED = 0.5  # of the spread that is left
LEAST_BYTES = 65536  # of rows that are fitted, where a table has larger ones
STEPS, GAIN = 60, 1e-4  # at most, and as long as a step lessens the sum of squares by that share
# By field of a curve: how far ln(value) may lie from the machine's own, and the bounds of values.
SPREAD = {
    "launch_s": (1.5, 1e-7, 1e-2),
    "hop_small_s": (1.5, 1e-7, 5e-2),
    "hop_large_s": (1.5, 1e-7, 5e-2),
    "step_small_s": (1.5, 1e-8, 1e-3),
    "step_large_s": (1.5, 1e-8, 1e-3),
    "efficiency_across": (0.7, 0.01, 1.0),
    "efficiency_within": (0.7, 0.01, 1.0),
    "chunk_pivot_bytes": (1.0, 256.0, 2.0**28),
    "overlap": (0.5, 1.0, 8.0),
}
ACROSS = ("hop_small_s", "hop_large_s", "efficiency_across")
WITHIN = ("step_small_s", "step_large_s", "efficiency_within")


@record
class Sample:
    """One measured collective: a kind, its group, payload and time."""

    kind: Kind
    ranks: int
    nodes: int
    size_bytes: float
    seconds: float


@record
class Constant:
    """One number of one curve of the library: its slot (`tree`, `recursive.all_gather`), field,
    value on the machine, and fitted value."""

    slot: str
    field: str
    before: float
    after: float


@record
class NetworkFit:
    """A machine with the fitted library; the constants that the samples determine, those that they
    do not (`kept`), and the slots whose curves are `new`."""

    machine: Machine
    determined: tuple[Constant, ...]
    kept: tuple[Constant, ...]
    new: tuple[str, ...]


@in_session
def fit_network(machine: Machine, samples: Sequence[Sample]) -> NetworkFit:
    """Fit the library's curves for these collectives to their measured times.

    Raises a MachineError if the machine has measured tables of collectives, or if the groups do not
    fit its nodes.
    """
    if machine.profile is not None and machine.profile.collectives:
        raise MachineError(
            f"{machine.name} has measured tables of collectives, which a fit cannot change"
        )
    rows = [(each, ring_of(machine, each)) for each in fitted_samples(samples)]
    own, new = _with_own_curves(machine, rows)
    free = _free(own, rows)
    kept: list[Constant] = []
    while True:
        values, left = _least_squares(own, rows, free)
        constants = [
            Constant(slot, name, _value(own, slot, name), math.exp(value))
            for (slot, name), value in zip(free, values.tolist(), strict=True)
        ]
        if not free or left.max() <= DETERMINED:
            break
        kept.append(constants[worst := int(left.argmax())])
        del free[worst]
    return NetworkFit(_with_values(own, constants), tuple(constants), tuple(kept), new)


def fitted_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that are fitted: those of LEAST_BYTES and more, or all if none is as large."""
    large = [each for each in samples if each.size_bytes >= LEAST_BYTES]
    return large or list(samples)


def every_other(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Each group's largest size and every other one below it, and the remaining sizes."""
    seen, held = [], []
    for group in dict.fromkeys((s.kind, s.ranks, s.nodes) for s in samples):
        own = [s for s in samples if (s.kind, s.ranks, s.nodes) == group]
        own.sort(key=lambda s: -s.size_bytes)
        seen += own[::2]
        held += own[1::2]
    return seen, held


def predicted_s(machine: Machine, sample: Sample) -> float:
    """What the machine predicts for a sample."""
    ring = ring_of(machine, sample)
    return collective_seconds(machine, sample.kind, sample.size_bytes, ring)


def mean_error(machine: Machine, samples: Sequence[Sample]) -> float:
    """The mean absolute error of predicted times, as a share of the measured ones."""
    return float(np.mean([abs(predicted_s(machine, s) / s.seconds - 1) for s in samples]))


def ring_of(machine: Machine, sample: Sample) -> Ring:
    """The ring of a sample's group, which fills the first nodes evenly."""
    per_node = machine.devices_per_node
    large = with_room(machine, per_node * sample.nodes)
    return full_ring(large, sample.ranks, sample.nodes, sample.kind)


def _with_own_curves(
    machine: Machine, rows: Sequence[tuple[Sample, Ring]]
) -> tuple[Machine, tuple[str, ...]]:
    """The machine with a curve in each slot that a row needs, and the slots that were added: an
    all-reduce, all-to-all or broadcast without a curve copies that of all-gathers."""
    new = []
    for sample, _ in rows:
        slot = str(sample.kind)
        if getattr(machine.software, slot) is None and machine.software.all_gather is not None:
            changed: dict[str, Any] = {slot: machine.software.all_gather}
            own = dataclasses.replace(machine.software, **changed)
            machine = dataclasses.replace(machine, software=own)
            new.append(slot)
    return machine, tuple(new)


def _slot(kind: Kind, algorithm: str) -> str:
    """The slot of the library's curve for an algorithm."""
    if algorithm in ("tree", "nvls"):
        return algorithm
    return f"{algorithm}.{kind}" if algorithm in ("recursive", "hierarchical") else kind


def _free(machine: Machine, rows: Sequence[tuple[Sample, Ring]]) -> list[tuple[str, str]]:
    """The constants to fit: those of the curves that the rows use, within nodes or across."""
    found: dict[tuple[str, str], None] = {}
    for sample, ring in rows:
        times = algorithm_seconds(machine, sample.kind, sample.size_bytes, ring)
        slot = _slot(sample.kind, picked(machine, sample.kind, sample.size_bytes, ring, times))
        if _curve(machine, slot) is None:
            continue
        own = ACROSS if ring.nodes > 1 else WITHIN
        for name in ("launch_s", *own, "chunk_pivot_bytes", "overlap"):
            found[slot, name] = None
    return list(found)


def _curve(machine: Machine, slot: str) -> Curve | None:
    outer, dot, inner = slot.partition(".")
    part = getattr(machine.software, outer)
    found: Curve | None = getattr(part, inner) if dot else part
    return found


def _value(machine: Machine, slot: str, name: str) -> float:
    """A constant of a curve; a latency of large chunks that it does not have is that of small."""
    value = getattr(_curve(machine, slot), name)
    if value is None:
        value = getattr(_curve(machine, slot), name.replace("large", "small"))
    return max(float(value), SPREAD[name][1])


def _with_values(machine: Machine, constants: Sequence[Constant]) -> Machine:
    software = machine.software
    for slot in dict.fromkeys(c.slot for c in constants):
        curve = _curve(machine, slot)
        assert curve is not None
        values: dict[str, Any] = {c.field: c.after for c in constants if c.slot == slot}
        own: Any = dataclasses.replace(curve, **values)
        outer, dot, inner = slot.partition(".")
        part = dataclasses.replace(getattr(software, outer), **{inner: own}) if dot else own
        changed: dict[str, Any] = {outer: part}
        software = dataclasses.replace(software, **changed)
    return dataclasses.replace(machine, software=software)


def _least_squares(
    machine: Machine, rows: Sequence[tuple[Sample, Ring]], free: Sequence[tuple[str, str]]
) -> tuple[Vector, Vector]:
    """The logarithms of the free constants, and the share of each one's spread that is left."""
    start = np.log([_value(machine, slot, name) for slot, name in free])
    spread = np.array([SPREAD[name][0] for _, name in free])
    low, high = (np.log([SPREAD[name][end] for _, name in free]) for end in (1, 2))

    def missed(point: Vector) -> Vector:
        own = _with_values(
            machine,
            [
                Constant(slot, name, 0.0, value)
                for (slot, name), value in zip(free, np.exp(point).tolist(), strict=True)
            ],
        )
        times = [collective_seconds(own, s.kind, s.size_bytes, ring) for s, ring in rows]
        errors = np.log(times) - np.log([s.seconds for s, _ in rows])
        falls = [_falls(own, slot) for slot in dict.fromkeys(slot for slot, _ in free)]
        return np.concatenate([errors / NOISE, np.array(falls) / NOISE, (point - start) / spread])

    if not free:
        return start, np.zeros(0)
    point, damping = start, 1.0
    found = missed(point)
    for _ in range(STEPS):
        slopes = _slopes(missed, point, high)
        normal, gradient = slopes.T @ slopes, slopes.T @ found
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
        tried = np.clip(point + np.clip(step, -1.0, 1.0), low, high)
        other = missed(tried)
        if other @ other < found @ found:
            done = other @ other > (1 - GAIN) * (found @ found)
            point, found, damping = tried, other, max(damping / 3, 1e-9)
            if done:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    slopes = _slopes(missed, point, high)
    left = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes))) / spread
    return point, left


def _falls(machine: Machine, slot: str) -> float:
    """By how much, as a logarithm, latencies of a curve fall from small chunks to large ones, which
    would let more bytes take less time."""
    curve = _curve(machine, slot)
    assert curve is not None
    pairs = [(curve.hop_small_s, curve.hop_large_s), (curve.step_small_s, curve.step_large_s)]
    return sum(max(math.log(small / large), 0.0) for small, large in pairs if small and large)


def _slopes(missed: Callable[[Vector], Vector], point: Vector, high: Vector) -> Vector:
    """By how much each error grows with each logarithm, to the side that lies within bounds."""
    columns, found = [], missed(point)
    for at in range(len(point)):
        by = 1e-4 if point[at] + 1e-4 <= high[at] else -1e-4
        moved = point.copy()
        moved[at] += by
        columns.append((missed(moved) - found) / by)
    return np.array(columns).T
