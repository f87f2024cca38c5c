"""Families: all shapes with the same program, bounded together by their busiest streams."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.collecting import uncollected
from simulator.costs import ComputeCosts
from simulator.fabric import MachineFabric
from simulator.search.bound import SCHEDULES, Entries, Ledger, device_bytes, ledger, memory
from simulator.search.seconds import Clock
from simulator.search.sized import Sized, kinds, sized
from simulator.search.space import Space, schedules
from simulator.search.untimed import Refused, Times

Ints = NDArray[np.int64]
PARTS = 8  # of a space, for each worker to take the next
WORTH = 20_000  # shapes, fewer of which one process bounds sooner than several are started
LONGEST_S = 600.0


@dataclass(frozen=True)
class Family:
    """Shapes with the same program: rows of the space, what their parts need, their orders."""

    rows: Ints
    ledger: Ledger
    entries: Entries


@dataclass(frozen=True)
class Machinery:
    """What decides which plans fit into a machine and how long they take."""

    costs: ComputeCosts
    fabric: MachineFabric
    capacity_bytes: int


def all_families(
    space: Space, machinery: Machinery, workers: Executor | None = None
) -> Iterator[Family | Refused]:
    """The families of a space, without shapes that have no room in memory; those that have, but
    cannot be predicted, are by themselves."""
    every = kinds(space, np.arange(len(space), dtype=np.int64))
    if workers is None or len(space) < WORTH:
        clock = Clock(space, machinery.costs, machinery.fabric)
        times = Times(machinery.costs, machinery.fabric)
        for rows in every:
            yield from _families(clock, times, machinery.capacity_bytes, rows)
        return
    parts = [np.concatenate(every[at::PARTS]) for at in range(min(PARTS, len(every)))]
    smaller = [space.only(rows) for rows in parts]
    found = workers.map(families, smaller, [machinery] * len(parts), timeout=LONGEST_S)
    for rows, some in zip(parts, found, strict=True):
        for family in some:
            yield replace(family, rows=rows[family.rows])


def families(space: Space, machinery: Machinery) -> list[Family | Refused]:
    """The same, in this process."""
    with uncollected():
        return list(all_families(space, machinery))


def _families(
    clock: Clock, times: Times, capacity_bytes: int, rows: Ints
) -> Iterator[Family | Refused]:
    space = clock.space
    for some in sized(space, rows):
        room = _has_room(space, capacity_bytes, some)
        if not room.any():
            continue
        fitting = some.only(room)
        if refused := times.against(space, fitting):
            yield from refused
            others = ~np.isin(fitting.rows, np.concatenate([each.rows for each in refused]))
            if not others.any():
                continue
            fitting = fitting.only(others)
        known = ledger(clock, fitting)
        for entries in entries_of(space, fitting.rows):
            yield Family(fitting.rows, known, entries)


def _has_room(space: Space, capacity_bytes: int, some: Sized) -> NDArray[np.bool_]:
    rows = some.rows
    pipe, micro_batches = space.columns["pipe"][rows], space.micro_batches[rows]
    held, saved = memory(some)
    least = device_bytes(held, saved, pipe, micro_batches, space.question.gpt.layers)
    return np.asarray(least <= capacity_bytes)


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
