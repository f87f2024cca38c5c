"""Where more bytes may take less time than fewer, so that the fewest bound nothing.

Bounds of a search stand for plans whose ops have as many bytes as those of its programs, or more.
Measured times may fall as sizes grow, if only by noise; bounds take the least of each size and of
all larger ones there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod

from topologies.collectives.nccl_tuner import NONE
from topologies.hardware.profile import MeasuredTable
from topologies.hardware.software import AUTO, Curve, Software
from topologies.machine import Machine
from workload.kinds import ATTENTIONS

Row = tuple[float, ...]
Sizes = Callable[[Row], tuple[Row, float]]  # what measurements to compare have alike, and a size


def may_fall(machine: Machine, *kinds: str) -> str:
    """Why larger collectives of some kinds may take less time on a machine `without_falls`; ""
    where they do not."""
    software = machine.software
    for kind in kinds:
        if machine.profile is not None and kind in machine.profile.collectives:
            continue
        # A tuner picks an all-reduce's algorithm by size, and not always the fastest one.
        tuned = software.tuner != NONE and software.algorithm.all_reduce == AUTO
        if (tuned and kind == "all_reduce") or not all(map(_grows, _curves(software, kind))):
            return f"its {kind.replace('_', '-')}s of some sizes are slower than larger ones"
    return ""


def _curves(software: Software, kind: str) -> list[Curve]:
    """The curves of a collective's algorithms; an all-reduce may be both halves in one kernel."""
    reduces = kind == "all_reduce"
    kinds = (kind, "all_gather", "reduce_scatter") if reduces else (kind,)
    rings = [getattr(software, each) or software.all_gather for each in kinds]
    staged = (software.recursive, software.hierarchical)
    others = [getattr(own, each, None) for own in staged for each in kinds]
    trees = [software.tree, software.nvls] if reduces else []
    return [curve for curve in (*rings, *others, *trees) if curve is not None]


def _grows(curve: Curve) -> bool:
    """Whether a larger message takes as long as a smaller one, or longer."""
    hops = curve.hop_small_s, curve.hop_large_s
    steps = curve.step_small_s, curve.step_large_s
    falls = any(large is not None and large < small for small, large in (hops, steps))
    return curve.stall is None and not falls


def without_falls(machine: Machine) -> Machine:
    """The machine whose measured times do not fall as sizes grow: each is the least of its own size
    and of all larger ones. Matmuls, which have three sizes, stay as they are."""
    profile = machine.profile
    if profile is None:
        return machine
    collectives = {kind: _least(table, _of_bytes) for kind, table in profile.collectives.items()}
    kernels = {
        name: _least(table, sizes) if (sizes := _sizes_of(name.partition("@")[0])) else table
        for name, table in profile.kernels.items()
    }
    return replace(machine, profile=replace(profile, collectives=collectives, kernels=kernels))


def _sizes_of(kind: str) -> Sizes | None:
    """How `simulator/costs/calibrated.py` reads a kernel's measurements; None for matmuls."""
    if kind == "matmul":
        return None
    if kind == "batched_matmul":
        return lambda row: (row[:2], row[2])
    if kind.partition(".")[0] in ATTENTIONS:
        return lambda row: (row[:1], prod(row[1:-1]))
    return _of_bytes


def _of_bytes(row: Row) -> tuple[Row, float]:
    return row[:1], row[1]


def _least(table: MeasuredTable, sizes: Sizes) -> MeasuredTable:
    """The table with the least time of each size and all larger ones, of each number of ranks."""
    every = [(*sizes(row), row[-1]) for row in table.rows]
    ordered, lowest = sorted(every, reverse=True), dict[Row, float]()
    found: dict[tuple[Row, float], float] = {}
    for alike, size, seconds in ordered:
        lowest[alike] = found[alike, size] = min(lowest.get(alike, inf), seconds)
    rows = (
        (*row[:-1], found[alike, size])
        for row, (alike, size, _) in zip(table.rows, every, strict=True)
    )
    return MeasuredTable(table.columns, tuple(rows))
