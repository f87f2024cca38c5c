"""Families: all shapes with the same program, bounded together by their busiest streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.costs.analytic import ComputeCosts
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import BatchedProgram, kinds, sized
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.peak_memory import device_bytes, memory
from simulator.search.bounds.stream_bound import SCHEDULES, Entries, Ledger, ledger
from simulator.search.bounds.unsupported import RefusalTimes, Refused
from simulator.search.problem import schedules
from simulator.search.space import Space

Ints = NDArray[np.int64]
WORTH = 20_000  # shapes, fewer of which one process bounds sooner than several are started
NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Family:
    """Shapes with the same program: rows of the space, what their parts need, their orders."""

    rows: Ints
    ledger: Ledger
    entries: Entries


@dataclass(frozen=True)
class Bounded:
    """What is known of so many shapes: the families of those that may fit, those of them that
    cannot be predicted, and how much memory each of the others needs at least."""

    shapes: int
    found: list[Family | Refused]
    least_bytes: int


@dataclass(frozen=True)
class Machinery:
    """What decides which plans fit into a machine and how long they take."""

    costs: ComputeCosts
    fabric: MachineFabric
    capacity_bytes: int


def shares(space: Space, count: int) -> list[list[Ints]]:
    """The rows of a space in `count` shares of about as many, each in parts that are bounded
    together."""
    every = sorted(kinds(space, np.arange(len(space), dtype=np.int64)), key=len, reverse=True)
    return [every[at::count] for at in range(count)]


def bounded(clock: OpBounds, times: RefusalTimes, capacity_bytes: int, rows: Ints) -> Bounded:
    """What is known of some rows before any of them is looked at alone."""
    space, least_bytes = clock.space, NEVER
    found: list[Family | Refused] = []
    for some in sized(space, rows):
        needed = _least_bytes(space, some)
        room = needed <= capacity_bytes
        least_bytes = min(least_bytes, int(needed[~room].min(initial=NEVER)))
        if room.any():
            found += _families(clock, times, some.only(room))
    return Bounded(len(rows), found, least_bytes)


def _families(
    clock: OpBounds, times: RefusalTimes, fitting: BatchedProgram
) -> Iterator[Family | Refused]:
    space = clock.space
    if refused := times.against(space, fitting):
        yield from refused
        others = ~np.isin(fitting.rows, np.concatenate([each.rows for each in refused]))
        if not others.any():
            return
        fitting = fitting.only(others)
    known = ledger(clock, fitting)
    for entries in entries_of(space, fitting.rows):
        yield Family(fitting.rows, known, entries)


def least_bytes(space: Space) -> int:
    """How much memory every plan of a space needs at least."""
    every = kinds(space, np.arange(len(space), dtype=np.int64))
    each = (some for rows in every for some in sized(space, rows))
    return min(int(_least_bytes(space, some).min()) for some in each)


def _least_bytes(space: Space, some: BatchedProgram) -> Ints:
    rows = some.rows
    pipe, micro_batches = space.columns["pipe"][rows], space.micro_batches[rows]
    held, saved = memory(some)
    return device_bytes(held, saved, pipe, micro_batches, space.question.gpt.layers)


def entries_of(space: Space, rows: Ints) -> Iterator[Entries]:
    """The orders of some rows: those without a pipeline, then pipelines of either kind."""
    pipe, micro_batches = space.columns["pipe"][rows], space.micro_batches[rows]
    pairs, which = np.unique(np.stack([pipe, micro_batches]), axis=1, return_inverse=True)
    found: dict[tuple[bool, bool], list[Ints]] = {}
    for number, (stages, each) in enumerate(pairs.T.tolist()):
        lane = np.flatnonzero(which.ravel() == number)
        for schedule, interleave in schedules(space.question, stages, each):
            chunk = space.question.gpt.layers // (stages * interleave)
            fields = (stages, each, SCHEDULES.index(schedule), interleave, chunk)
            table = np.array([np.full(len(lane), value) for value in fields])
            kind = stages > 1, schedule.startswith("zb")
            found.setdefault(kind, []).append(np.vstack([lane, table]))
    for _, tables in sorted(found.items()):
        yield Entries(*np.concatenate(tables, axis=1))
