"""Best first: bounds are refined and plans simulated, always those that may be fastest, until no
plan that is left can be faster than those found.

There are four levels. A family is all shapes with the same program, bounded by their busiest
streams; it opens into groups, one for each set of overlaps, bounded likewise; a group opens into
drafts, bounded by playing their slots alone; a draft of a pipeline becomes a plan, bounded by
playing its schedule; a plan is simulated.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from simulator.prediction import Prediction
from simulator.search.alone import Alone
from simulator.search.bound import (
    SCHEDULES,
    Busiest,
    Ends,
    Entries,
    alone_bytes,
    step_ticks,
)
from simulator.search.families import LONGEST_S, Family, Machinery, all_families
from simulator.search.objective import Objective
from simulator.search.paced import paced_ticks
from simulator.search.seconds import Clock
from simulator.search.sized import Sized, sized
from simulator.search.space import Order, Space, overlaps
from workload.plan import Plan

Ints = NDArray[np.int64]
NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Group:
    """Orders of some rows of the space with the same overlaps, and the bounds of each, on a step's
    time and on how long devices compute in it."""

    rows: Ints
    entries: Entries
    bounds: Ints
    busy: Ints
    overlap: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """A plan of a pipeline, and what its slots take at least."""

    plan: Plan
    slots: Alone
    at: int
    busy: int

    def ticks(self) -> int:
        """What its step takes at least."""
        entries = self.slots.entries
        nbytes = self.slots.message_bytes(self.at)
        links = self.slots.clock.link_ticks(self.plan.pipe, nbytes)
        over = paced_ticks(
            self.plan,
            lambda work, ends, last: int(self.slots.slot(work, ends, last=last)[self.at]),
            links,
        )
        return over + sum(
            int(part[self.at]) for part in self.slots.step(entries.interleave, Ends())
        )


@dataclass(frozen=True, slots=True)
class State:
    """How far a search is: no plan that has not been simulated has a lower value than `bound`, in
    seconds or joules as the objective asks; `best` is the lowest found.

    `considered` plans are legal, `fitting` of them have room as far as the bound on memory tells,
    and `simulated` were. `found` has the fastest of these that fit.
    """

    considered: int
    fitting: int
    simulated: int
    bound: float
    best: float
    found: tuple[Prediction, ...]
    is_optimal: bool

    @property
    def gap(self) -> float:
        """By what share of its value the best plan found may miss the best there is."""
        if self.is_optimal or not self.found:
            return 0.0 if self.is_optimal else 1.0
        return max(1 - self.bound / self.best, 0.0)


@dataclass(frozen=True)
class Hands:
    """Who simulates plans: `simulate` here, or `workers` of `count` processes."""

    simulate: Callable[[Plan], Prediction]
    workers: Executor | None = None
    count: int = 1

    def all(self, plans: Sequence[Plan]) -> Iterator[Prediction]:
        """The predictions of some plans."""
        if self.workers is None or len(plans) == 1:
            return map(self.simulate, plans)
        return self.workers.map(self.simulate, plans, timeout=LONGEST_S)


class Search:
    """The search of a space for the `top` best plans that fit."""

    def __init__(
        self, space: Space, machinery: Machinery, hands: Hands, objective: Objective, top: int = 1
    ) -> None:
        self._space, self._machinery = space, machinery
        self._clock = Clock(space, machinery.costs, machinery.fabric)
        self._hands, self._objective, self._top = hands, objective, top
        self._heap: list[tuple[int, int, Family | Group | Draft | Plan]] = []
        self._counter = count()
        self._found: list[tuple[int, int, Prediction]] = []
        self._fitting = self._simulated = 0

    def run(self) -> Iterator[State]:
        """Search step by step; the last state is the answer."""
        fits = np.zeros(len(self._space), dtype=bool)
        for family in all_families(self._space, self._machinery, self._hands.workers):
            yield State(self._space.plans, 0, 0, 0.0, np.inf, (), False)
            fits[family.rows] = True
            busiest = Busiest(family.ledger, family.entries, None)
            bounds = self._objective.bound(step_ticks(busiest), busiest.busy())
            self._push(int(bounds.min()), family)
        self._fitting = int(self._space.orders[fits].sum())
        while self._may_win():
            yield self._state()
            bound, _, item = heapq.heappop(self._heap)
            if isinstance(item, Family):
                self._open_family(item)
            elif isinstance(item, Group):
                self._open_group(item)
            elif isinstance(item, Draft):
                ticks, busy = np.array([item.ticks()]), np.array([item.busy])
                self._push(max(bound, int(self._objective.bound(ticks, busy)[0])), item.plan)
            else:
                self._try([item, *self._next_plans()])
        yield self._state()

    @property
    def _threshold(self) -> int:
        """What a plan must undercut to be among the fastest."""
        return self._found[self._top - 1][0] if len(self._found) >= self._top else NEVER

    def _may_win(self) -> bool:
        return bool(self._heap) and self._heap[0][0] < self._threshold

    def _state(self) -> State:
        bound = min(self._heap[0][0] if self._heap else NEVER, self._threshold)
        best = self._found[0][0] if self._found else NEVER
        return State(
            self._space.plans,
            self._fitting,
            self._simulated,
            self._objective.shown(bound),
            self._objective.shown(best),
            tuple(prediction for _, _, prediction in self._found[: self._top]),
            not self._may_win(),
        )

    def _push(self, bound: int, item: Family | Group | Draft | Plan) -> None:
        if bound < self._threshold:
            heapq.heappush(self._heap, (bound, next(self._counter), item))

    def _open_family(self, family: Family) -> None:
        shape = self._space.shape(int(family.rows[0])) | {"pipe": 1}
        for overlap in overlaps(self._space.question, shape):
            busiest = Busiest(family.ledger, family.entries, overlap)
            ticks, busy = step_ticks(busiest), busiest.busy()
            bounds = self._objective.bound(ticks, busy)
            keep = bounds < self._threshold
            if keep.any():
                rows = family.rows[family.entries.lane[keep]]
                entries = family.entries.only(keep, np.arange(len(rows), dtype=np.int64))
                group = Group(rows, entries, ticks[keep], busy[keep], overlap)
                self._push(int(bounds.min()), group)

    def _open_group(self, group: Group) -> None:
        fresh = self._objective.bound(group.bounds, group.busy) < self._threshold
        schedule = SCHEDULES[int(group.entries.schedule[0])]
        how = {"overlap": group.overlap, "schedule": schedule}
        for some in sized(self._space, np.unique(group.rows[fresh]), **how):
            keep = fresh & np.isin(group.rows, self._with_room(some))
            if not keep.any():
                continue
            rows = group.rows[keep]
            entries = group.entries.only(keep, np.searchsorted(some.rows, rows))
            slots = Alone(self._clock, some, entries)
            busy = group.busy[keep]
            ticks = np.maximum(step_ticks(slots), group.bounds[keep])
            bounds = self._objective.bound(ticks, busy)
            for number, at in enumerate(np.argsort(bounds, kind="stable").tolist()):
                if bounds[at] >= self._threshold:
                    break
                plans = self._plans(int(rows[at]), entries, at, group.overlap)
                if not number:  # at once: what it takes may spare all that cannot be faster
                    self._try(plans[:1])
                for plan in plans if number else plans[1:]:
                    draft = Draft(plan, slots, at, int(busy[at])) if plan.pipe > 1 else plan
                    self._push(int(bounds[at]), draft)

    def _with_room(self, some: Sized) -> Ints:
        """Rows that may fit; what is known of pipelines' memory was weighed before."""
        least = alone_bytes(some, self._space.question.gpt.layers)
        pipelines = self._space.columns["pipe"][some.rows] > 1
        return some.rows[pipelines | (least <= self._machinery.capacity_bytes)]

    def _plans(self, row: int, entries: Entries, at: int, overlap: tuple[str, ...]) -> list[Plan]:
        """A plan with and, in a pipeline, without overlapped messages: bounds leave these out."""
        schedule, interleave = SCHEDULES[int(entries.schedule[at])], int(entries.interleave[at])
        found = [self._space.plan(row, Order(schedule, interleave, overlap))]
        if entries.pipe[at] > 1 and "overlap" not in self._space.question.fixed:
            without = tuple(switch for switch in overlap if switch != "pp")
            found.append(self._space.plan(row, Order(schedule, interleave, without)))
        return found

    def _next_plans(self) -> Iterator[Plan]:
        """As many of the plans that come next as there are more hands."""
        for _ in range(self._hands.count - 1):
            if not (self._may_win() and isinstance(self._heap[0][2], Plan)):
                return
            plan = heapq.heappop(self._heap)[2]
            assert isinstance(plan, Plan)
            yield plan

    def _try(self, plans: Sequence[Plan]) -> None:
        for prediction in self._hands.all(plans):
            self._simulated += 1
            if prediction.memory.peak_bytes <= self._machinery.capacity_bytes:
                value = self._objective.of(prediction)
                insort(self._found, (value, next(self._counter), prediction))
