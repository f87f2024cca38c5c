"""Best first: bounds are refined and plans simulated, always those that may be fastest, until no
plan that is left can be faster than those found.

There are three levels. A family is all shapes with the same program, bounded by their busiest
streams; it opens into groups, one for each set of overlaps, bounded likewise; a group opens into
plans, bounded by playing their slots alone; a plan is simulated.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from simulator.prediction import Prediction
from simulator.search.alone import Alone
from simulator.search.bound import (
    SCHEDULES,
    Busiest,
    Entries,
    Ledger,
    device_bytes,
    ledger,
    memory,
    step_ticks,
)
from simulator.search.seconds import Clock
from simulator.search.sized import Sized, sized
from simulator.search.space import Order, Space, overlaps, schedules
from simulator.ticks import to_seconds, to_ticks
from workload.plan import OVERLAPS, Plan

Ints = NDArray[np.int64]
NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Family:
    """Shapes with the same program, what their parts need, and their orders."""

    some: Sized
    ledger: Ledger
    entries: Entries


@dataclass(frozen=True)
class Group:
    """Orders of some rows with the same overlaps, and the bounds of each."""

    rows: Ints
    entries: Entries
    bounds: Ints
    overlap: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """How far a search is: no plan that has not been simulated takes less than `bound_s`."""

    bound_s: float
    fitting: int
    simulated: int
    found: tuple[Prediction, ...]

    @property
    def is_optimal(self) -> bool:
        """Whether nothing that is left can be faster than what was found."""
        return self.bound_s >= (self.found[-1].step_s if self.found else np.inf)


class Search:
    """The search of a space for the `top` fastest plans that fit into `capacity_bytes`."""

    def __init__(
        self,
        space: Space,
        clock: Clock,
        capacity_bytes: int,
        simulate: Callable[[Plan], Prediction],
        top: int = 1,
    ) -> None:
        self._space, self._clock = space, clock
        self._capacity_bytes, self._top = capacity_bytes, top
        self._simulate = simulate
        self._heap: list[tuple[int, int, Family | Group | Plan]] = []
        self._counter = count()
        self._found: list[tuple[int, int, Prediction]] = []
        self._fitting = self._simulated = 0

    def run(self) -> Iterator[State]:
        """Search step by step; the last state is the answer."""
        for some in sized(self._space, np.arange(len(self._space), dtype=np.int64)):
            self._admit(some)
        while self._heap and self._heap[0][0] < self._threshold:
            yield self._state()
            _, _, item = heapq.heappop(self._heap)
            if isinstance(item, Family):
                self._open_family(item)
            elif isinstance(item, Group):
                self._open_group(item)
            else:
                self._try(item)
        yield self._state()

    @property
    def _threshold(self) -> int:
        """What a plan must undercut to be among the fastest."""
        return self._found[self._top - 1][0] if len(self._found) >= self._top else NEVER

    def _state(self) -> State:
        bound = self._heap[0][0] if self._heap else NEVER
        found = tuple(prediction for _, _, prediction in self._found[: self._top])
        return State(to_seconds(bound), self._fitting, self._simulated, found)

    def _push(self, bound: int, item: Family | Group | Plan) -> None:
        if bound < self._threshold:
            heapq.heappush(self._heap, (bound, next(self._counter), item))

    def _admit(self, some: Sized) -> None:
        """Bound what has room in memory."""
        space, rows = self._space, some.rows
        layers = space.question.gpt.layers
        pipe, micro_batches = space.columns["pipe"][rows], space.micro_batches[rows]
        least = device_bytes(*memory(some), pipe, micro_batches, layers)
        keep = least <= self._capacity_bytes
        self._fitting += int(space.orders[rows[keep]].sum())
        if not keep.any():
            return
        some = some.only(keep)
        known = ledger(self._clock, some)
        for entries in entries_of(space, some.rows):
            bounds = step_ticks(Busiest(known, entries, OVERLAPS))
            self._push(int(bounds.min()), Family(some, known, entries))

    def _open_family(self, family: Family) -> None:
        shape = self._space.shape(int(family.some.rows[0])) | {"pipe": 1}
        for overlap in overlaps(self._space.question, shape):
            bounds = step_ticks(Busiest(family.ledger, family.entries, overlap))
            keep = bounds < self._threshold
            if keep.any():
                rows = family.some.rows[family.entries.lane[keep]]
                entries = family.entries.only(keep, np.arange(len(rows), dtype=np.int64))
                self._push(int(bounds.min()), Group(rows, entries, bounds[keep], overlap))

    def _open_group(self, group: Group) -> None:
        fresh = group.bounds < self._threshold
        schedule = SCHEDULES[int(group.entries.schedule[0])]
        how = {"overlap": group.overlap, "schedule": schedule}
        for some in sized(self._space, np.unique(group.rows[fresh]), **how):
            keep = fresh & np.isin(group.rows, some.rows)
            lane = np.searchsorted(np.sort(some.rows), group.rows[keep])
            entries = group.entries.only(keep, np.argsort(some.rows)[lane])
            bounds = step_ticks(Alone(self._clock, some, entries))
            bounds = np.maximum(bounds, group.bounds[keep])
            rows = group.rows[keep]
            for number, at in enumerate(np.argsort(bounds, kind="stable").tolist()):
                if bounds[at] >= self._threshold:
                    break
                for plan in self._plans(int(rows[at]), entries, at, group.overlap):
                    if number:
                        self._push(int(bounds[at]), plan)
                    else:  # at once: what it takes spares much that could not be faster
                        self._try(plan)

    def _plans(
        self, row: int, entries: Entries, at: int, overlap: tuple[str, ...]
    ) -> Iterator[Plan]:
        """A plan with and, in a pipeline, without overlapped messages: bounds leave these out."""
        question = self._space.question
        schedule, interleave = SCHEDULES[int(entries.schedule[at])], int(entries.interleave[at])
        yield self._space.plan(row, Order(schedule, interleave, overlap))
        if entries.pipe[at] > 1 and "overlap" not in question.fixed:
            without = tuple(switch for switch in overlap if switch != "pp")
            yield self._space.plan(row, Order(schedule, interleave, without))

    def _try(self, plan: Plan) -> None:
        prediction = self._simulate(plan)
        self._simulated += 1
        if prediction.memory.peak_bytes <= self._capacity_bytes:
            insort(self._found, (to_ticks(prediction.step_s), next(self._counter), prediction))


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
