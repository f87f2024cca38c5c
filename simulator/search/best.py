"""Best first: bounds are refined and plans simulated, always those that may be fastest, until no
plan that is left can be faster than those found.

A family is all shapes with the same program, bounded by their busiest streams; it opens into
groups, one for each set of overlaps, bounded likewise. Until then collectives last as long as on
the fastest ring of all rank orders; in a group each plan has its order, and its rings. A group
becomes a queue of plans, bounded by playing their slots alone; from a queue the next one becomes a
draft or, without a pipeline, a plan; a draft becomes a plan, bounded by playing its schedule; and a
plan is simulated.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from simulator.prediction import Prediction
from simulator.search.alone import Alone
from simulator.search.bound import SCHEDULES, Busiest, Entries, alone_bytes, ledger, step_ticks
from simulator.search.families import LONGEST_S, Family, Machinery, all_families
from simulator.search.levels import Draft, Group, Queue, in_every_order
from simulator.search.objective import Objective
from simulator.search.room import pipeline_bytes
from simulator.search.scripts import Lowered, Script, Slots
from simulator.search.seconds import Clock
from simulator.search.sized import Sized, sized
from simulator.search.space import Space, overlaps
from simulator.search.untimed import Refused
from topologies.errors import MachineError
from workload.grid import USUAL
from workload.plan import OVERLAPS, Plan

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Item = Family | Group | Queue | Draft | Plan
NEVER = int(np.iinfo(np.int64).max)
NEAR = 1.25  # times the best bound of a family: what is placed together, in every rank order


@dataclass(frozen=True, slots=True)
class State:
    """How far a search is: no plan that has not been simulated has a lower value than `bound`, in
    seconds or joules as the objective asks; `best` is the lowest found.

    `considered` plans are legal, `fitting` of them have room as far as the bound on memory tells,
    and `simulated` were. `found` has the fastest of these that fit. `unpredicted` plans that may
    fit came up and could not be predicted, one of them for that `reason`; all else that is said is
    said of the others.
    """

    considered: int
    fitting: int
    simulated: int
    bound: float
    best: float
    found: tuple[Prediction, ...]
    is_optimal: bool
    unpredicted: int = 0
    reason: str = ""

    @property
    def gap(self) -> float:
        """By what share of its value the best plan found may miss the best there is."""
        if self.is_optimal or not self.found:
            return 0.0 if self.is_optimal else 1.0
        return max(1 - self.bound / self.best, 0.0)


@dataclass(frozen=True)
class Hands:
    """Who simulates plans: `simulate` here, or `workers` of `count` processes."""

    simulate: Callable[[Plan], Prediction | MachineError]
    workers: Executor | None = None
    count: int = 1

    def all(self, plans: Sequence[Plan]) -> Iterator[Prediction | MachineError]:
        """The predictions of some plans, or why there is none."""
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
        self._heap: list[tuple[int, int, Item]] = []
        self._counter = count()
        self._found: list[tuple[int, int, Prediction]] = []
        self._larger: dict[Plan, bool] = {}  # than the device's memory
        self._slots: dict[tuple[object, ...], Slots] = {}
        self._fitting = self._simulated = self._unpredicted = 0
        self._reason = ""

    def run(self) -> Iterator[State]:
        """Search step by step; the last state is the answer."""
        fits = np.zeros(len(self._space), dtype=bool)
        for family in all_families(self._space, self._machinery, self._hands.workers):
            yield State(self._space.plans, 0, 0, 0.0, np.inf, (), False)
            fits[family.rows] = True
            if isinstance(family, Refused):
                self._refuse(int(self._space.orders[family.rows].sum()), family.reason)
                continue
            busiest = Busiest(family.ledger, family.entries, None)
            bounds = self._objective.bound(step_ticks(busiest), busiest.busy())
            self._push(int(bounds.min()), family)
        self._fitting = int(self._space.orders[fits].sum())
        while self._may_win():
            yield self._state()
            bound, _, item = heapq.heappop(self._heap)
            if isinstance(item, Plan):
                self._try([item, *self._next_plans()])
            else:
                self._open(bound, item)
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
            self._unpredicted,
            self._reason,
        )

    def _refuse(self, plans: int, reason: str) -> None:
        self._unpredicted += plans
        self._reason = self._reason or reason

    def _push(self, bound: int, item: Item) -> None:
        if bound < self._threshold:
            heapq.heappush(self._heap, (bound, next(self._counter), item))

    def _open(self, bound: int, item: Family | Group | Queue | Draft) -> None:
        if isinstance(item, Family):
            self._open_family(item)
        elif isinstance(item, Group):
            self._open_group(item)
        elif isinstance(item, Queue):
            self._open_queue(item)
        elif not self._larger.get(replace(item.plan, order=USUAL), False):
            ticks, busy = np.array([item.ticks()]), np.array([item.busy])
            self._push(max(bound, int(self._objective.bound(ticks, busy)[0])), item.plan)

    def _now(self, bound: int, item: Group | Queue) -> None:
        """Open it at once as long as nothing is found: what it takes may spare all the others."""
        if self._threshold == NEVER:
            self._open(bound, item)
        else:
            self._push(bound, item)

    def _open_family(self, family: Family) -> None:
        bounds = self._bounds(busiest := Busiest(family.ledger, family.entries, None))
        at = np.argsort(bounds, kind="stable")[: int((bounds < self._threshold).sum())]
        near = int(np.searchsorted(bounds[at], bounds[at[0]] * NEAR, "right"))
        count = 1 if self._threshold == NEVER else near
        if len(later := at[count:]):
            entries = busiest.entries.only(later, busiest.entries.lane[later])
            self._push(int(bounds[later[0]]), replace(family, entries=entries))
        entries = busiest.entries.only(at[:count], busiest.entries.lane[at[:count]])
        rows, schedule = family.rows[entries.lane], SCHEDULES[int(entries.schedule[0])]
        for plain in sized(self._space, np.unique(rows), overlap=(), schedule=schedule):
            keep = np.isin(rows, plain.rows)
            own = entries.only(keep, np.searchsorted(plain.rows, rows[keep]))
            self._push_groups(Lowered(plain, self._slots), own)

    def _push_groups(self, lowered: Lowered, entries: Entries) -> None:
        """Push some rows with each set of overlaps."""
        some, entries = in_every_order(self._space, Script(lowered, OVERLAPS).some, entries)
        known = ledger(self._clock, some)
        fresh = self._bounds(Busiest(known, entries, None)) < self._threshold
        entries = entries.only(fresh, entries.lane[fresh])
        shape = self._space.shape(int(some.rows[0])) | {"pipe": 1}
        for overlap in overlaps(self._space.question, shape) if fresh.any() else ():
            busiest = Busiest(known, entries, overlap)
            ticks, busy = step_ticks(busiest), busiest.busy()
            bounds = self._objective.bound(ticks, busy)
            keep = bounds < self._threshold
            if keep.any():
                group = Group(some, Script(lowered, overlap), entries, ticks, busy)
                self._now(int(bounds.min()), group.only(keep))

    def _bounds(self, busiest: Busiest) -> Ints:
        return self._objective.bound(step_ticks(busiest), busiest.busy())

    def _open_group(self, group: Group) -> None:
        keep = self._objective.bound(group.ticks, group.busy) < self._threshold
        keep &= self._have_room(group.script.some)[group.some.lane[group.entries.lane]]
        if not keep.any():
            return
        group = group.only(keep)
        slots = Alone(self._clock, group.some, group.entries, group.script)
        bounds = self._objective.bound(np.maximum(step_ticks(slots), group.ticks), group.busy)
        at = np.argsort(bounds, kind="stable")[: int((bounds < self._threshold).sum())]
        if len(at):
            self._now(int(bounds[at[0]]), Queue(slots, at, bounds[at], group.busy))

    def _open_queue(self, queue: Queue) -> None:
        at, bound = int(queue.at[0]), int(queue.bounds[0])
        for plan in queue.plans(self._space):
            if self._threshold == NEVER:
                self._try([plan])
            else:
                busy = int(queue.busy[at])
                self._push(bound, Draft(plan, queue.slots, at, busy) if plan.pipe > 1 else plan)
        if len(queue.at) > 1:
            self._push(int(queue.bounds[1]), queue.later())

    def _have_room(self, some: Sized) -> Flags:
        """Which rows may fit; what is known of pipelines' memory was weighed before."""
        pipelines = self._space.columns["pipe"][some.rows] > 1
        if pipelines.all():
            return pipelines
        least = alone_bytes(some, self._space.question.gpt.layers)
        return np.asarray(pipelines | (least <= self._machinery.capacity_bytes))

    def _next_plans(self) -> Iterator[Plan]:
        """As many of the plans that come next as there are more hands."""
        for _ in range(self._hands.count - 1):
            if not (self._may_win() and isinstance(self._heap[0][2], Plan)):
                return
            plan = heapq.heappop(self._heap)[2]
            assert isinstance(plan, Plan)
            yield plan

    def _try(self, plans: Sequence[Plan]) -> None:
        """Simulate those plans that have room."""
        plans = [plan for plan in plans if not self._is_too_large(plan)]
        for plan, prediction in zip(plans, self._hands.all(plans), strict=True):
            if isinstance(prediction, MachineError):
                self._refuse(1, str(prediction))
                continue
            self._simulated += 1
            if prediction.memory.peak_bytes <= self._machinery.capacity_bytes:
                value = self._objective.of(prediction)
                insort(self._found, (value, next(self._counter), prediction))
            else:
                self._larger[replace(plan, order=USUAL)] = True

    def _is_too_large(self, plan: Plan) -> bool:
        """Whether a pipeline has no room, which is known sooner than its time; rank orders change
        nothing about it."""
        usual = replace(plan, order=USUAL)
        if usual not in self._larger:
            nbytes = pipeline_bytes(self._space.question.gpt, usual) if plan.pipe > 1 else 0
            self._larger[usual] = nbytes > self._machinery.capacity_bytes
        return self._larger[usual]
