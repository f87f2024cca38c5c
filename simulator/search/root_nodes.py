"""The roots of the search tree, families: shapes with the same program, bounded together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import BatchedProgram, kinds, sized, sizes_of
from simulator.search.bounds.in_flight import entry_bytes
from simulator.search.bounds.layer_kinds import LAYER
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import PartTimes, of_one_micro_batch, part_times
from simulator.search.bounds.peak_memory import (
    alone_bytes,
    bytes_of_layouts,
    device_bytes,
    memory,
)
from simulator.search.bounds.stream_bound import SCHEDULES, Entries, is_split
from simulator.search.bounds.unsupported import RefusalTimes, Refused
from simulator.search.problem import schedules
from simulator.search.space import Space
from topologies.records import record
from workload.sizes.arrays import Bytes, Flags, Indices

WORTH = 2_000  # shapes, fewer of which one process bounds sooner than several are started
Fields = tuple[int, int, int, int, int]  # of an entry, behind its lane
NEVER = int(np.iinfo(np.int64).max)


@record(slots=False)
class Family:
    """Shapes with the same program: rows of the space, ticks of the model's parts, and entries.

    Where they are still at hand `some` is the program of these rows, and `whole`, with the sizes of
    buffers, that of others too.
    """

    rows: Indices
    part_times: PartTimes
    entries: Entries
    some: BatchedProgram | None = None
    whole: BatchedProgram | None = None

    @property
    def fitting(self) -> Indices:
        """The rows that have entries."""
        return self.rows[self.entries.lane]


@record(slots=False)
class Bounded:
    """So many shapes: families of those that may fit, those that cannot be predicted, and the least
    memory that a shape needs which does not fit."""

    shapes: int
    found: list[Family | Refused]
    least_bytes: int


@record(slots=False)
class Machinery:
    """The machine's costs, fabric and memory."""

    costs: ComputeCosts
    fabric: MachineFabric
    capacity_bytes: int


def parts_of(space: Space, rows: Indices) -> list[Indices]:
    """Some rows of a space in parts that are bounded together."""
    return sorted(kinds(space, rows, together=True), key=partial(_place, space))


def _place(space: Space, rows: Indices) -> tuple[int, bytes]:
    """Most rows come first; those of the same sizes, whose programs share steps, together."""
    return -len(rows), sizes_of(space, rows)


def bounded(
    op_bounds: OpBounds,
    times: RefusalTimes,
    capacity_bytes: int,
    rows: Indices,
    *,
    by_order: bool = True,
) -> Bounded:
    """Bound some rows of the space together; with `by_order` of pipelines each order that may fit
    is known, else each row that may in some order."""
    space, least_bytes = op_bounds.space, NEVER
    found: list[Family | Refused] = []
    for each in sized(space, rows, together=True, behaviour=space.problem.behaviour):
        some = op_bounds.sharing(each)
        fitting, entries, least = _that_may_fit(space, some, capacity_bytes, by_order)
        least_bytes = min(least_bytes, least)
        if entries:
            for item in _families(op_bounds, times, fitting, entries):
                found.append(replace(item, whole=some) if isinstance(item, Family) else item)
    return Bounded(len(rows), found, least_bytes)


def _that_may_fit(
    space: Space, some: BatchedProgram, capacity_bytes: int, by_order: bool
) -> tuple[BatchedProgram, list[Entries], int]:
    """The rows of a program that have an order that may fit, with these orders, and the least
    memory that one of the others needs."""
    needed = least_bytes_of(space, some)
    enough = needed <= capacity_bytes
    least_bytes, kept = int(needed[~enough].min(initial=NEVER)), list[Entries]()
    fits = np.zeros(len(some.rows), dtype=bool)
    for entries in entries_of(space, some.rows):
        room = enough[entries.lane]
        if by_order and room.any() and bool((entries.pp > 1).all()):
            each = entry_bytes(space, some, entries)
            over = room & (each > capacity_bytes)
            least_bytes = min(least_bytes, int(each[over].min(initial=NEVER)))
            room &= ~over
        if room.any():
            kept.append(entries.only(room, entries.lane[room]))
            fits[kept[-1].lane] = True
    return *(_only(some, kept, fits) if kept else (some, kept)), least_bytes


def _families(
    op_bounds: OpBounds, times: RefusalTimes, fitting: BatchedProgram, every: list[Entries]
) -> Iterator[Family | Refused]:
    space = op_bounds.space
    others = np.ones(len(fitting.rows), dtype=bool)
    if refused := times.against(space, fitting):
        yield from refused
        others = ~np.isin(fitting.rows, np.concatenate([each.rows for each in refused]))
        if not others.any():
            return
    fitting, every = _only(fitting, every, others)
    known = part_times(op_bounds, fitting)
    for entries in every:
        yield Family(fitting.rows, times_for(entries, known), entries, fitting)


def times_for(entries: Entries, known: PartTimes) -> PartTimes:
    """Ticks of the parts of a program that may have two micro-batches, for entries of which all or
    none have one."""
    return of_one_micro_batch(known) if bool((entries.micro_batches == 1).all()) else known


def _only(
    some: BatchedProgram, every: list[Entries], keep: Flags
) -> tuple[BatchedProgram, list[Entries]]:
    """Some of the rows, and the entries of these."""
    if keep.all():
        return some, every
    place, found = np.cumsum(keep) - 1, []
    for entries in every:
        if (own := keep[entries.lane]).any():
            found.append(entries.only(own, place[entries.lane[own]]))
    return some.only(keep), found


def that_may_fit(
    space: Space, family: Family, low: Flags, capacity_bytes: int
) -> tuple[Entries, int]:
    """The `low` entries of a family that may fit, and the least memory that another needs."""
    entries = family.entries.only(low, family.entries.lane[low])
    if family.whole is None or bool((entries.pp == 1).all()):
        return entries, NEVER
    lane = np.searchsorted(family.whole.rows, family.rows[entries.lane])
    needed = entry_bytes(space, family.whole, entries.only(np.arange(len(lane)), lane))
    fits = needed <= capacity_bytes
    return entries.only(fits, entries.lane[fits]), int(needed[~fits].min(initial=NEVER))


def alone_may_fit(space: Space, some: BatchedProgram, capacity_bytes: int) -> tuple[Flags, int]:
    """Which of some rows may fit by what a device without a pipeline holds, given the overlaps, and
    the least memory that another needs; of pipelines that is not known."""
    unknown = space.columns["pp"][some.rows] > 1
    if unknown.all():
        return unknown, NEVER
    least = alone_bytes(some, space.problem.gpt)
    large = ~unknown & (least > capacity_bytes)
    return np.asarray(~large), int(least[large].min(initial=NEVER))


def may_fit(space: Space, capacity_bytes: int) -> bool:
    """Whether the bounds on memory leave room for some plan of a space."""
    behaviour, rows = space.problem.behaviour, np.arange(len(space), dtype=np.int64)
    for some in sized(space, rows, together=True, behaviour=behaviour):
        fitting, entries, _ = _that_may_fit(space, some, capacity_bytes, True)
        alone = bool(entries) and all(bool((each.pp == 1).all()) for each in entries)
        if entries and not alone:
            return True
        for plain in sized(space, fitting.rows, overlap=(), behaviour=behaviour) if alone else ():
            if bool((alone_bytes(plain, space.problem.gpt) <= capacity_bytes).any()):
                return True
    return False


def least_bytes_of(space: Space, some: BatchedProgram) -> Bytes:
    """How much memory each of some rows needs at least."""
    rows = some.rows
    pp, micro_batches = space.columns["pp"][rows], space.micro_batches[rows]
    held, saved = some.noted(memory)
    if space.problem.behaviour.scatter_gather:  # a chunk may keep but a part of what it receives
        saved = {kind: np.where(pp > 1, 0, nbytes) for kind, nbytes in saved.items()}
    if space.layouts is not None:
        return bytes_of_layouts(held, saved, pp, micro_batches, space.layouts)
    return device_bytes(held, saved[LAYER], pp, micro_batches, space.problem.gpt.layers)


def entries_of(space: Space, rows: Indices) -> Iterator[Entries]:
    """The orders of some rows: those without a pipeline, then pipelines of either kind; each time
    those of several micro-batches, then those of one."""
    pp, micro_batches = space.columns["pp"][rows], space.micro_batches[rows]
    pairs, which = np.unique(np.stack([pp, micro_batches]), axis=1, return_inverse=True)
    layouts = space.layouts
    found: dict[tuple[bool, bool, bool], tuple[list[Indices], list[Fields]]] = {}
    for number, (stages, each) in enumerate(pairs.T.tolist()):
        lane = np.flatnonzero(which.ravel() == number)
        for schedule, vpp in schedules(space.problem, stages, each):
            chunk = space.problem.gpt.layers // (stages * vpp)
            if layouts is not None:
                chunk = layouts.numbers[stages, vpp]
            fields = (stages, each, SCHEDULES.index(schedule), vpp, chunk)
            sort = stages > 1, is_split(schedule), each == 1
            lanes, table = found.setdefault(sort, ([], []))
            lanes.append(lane)
            table.append(fields)
    for _, (lanes, table) in sorted(found.items()):
        columns = np.repeat(np.array(table), list(map(len, lanes)), axis=0).T.copy()
        lane = np.concatenate(lanes)
        yield replace(Entries(lane, *columns), layouts=layouts)
