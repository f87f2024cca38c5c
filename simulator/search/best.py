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
from dataclasses import dataclass, replace
from itertools import chain, count
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from simulator.prediction import Prediction
from simulator.search.alone import Alone
from simulator.search.bound import SCHEDULES, Busiest, Entries, alone_bytes, ledger, step_ticks
from simulator.search.crew import Crew
from simulator.search.families import NEVER, Bounded, Family, Machinery, all_families
from simulator.search.first import likely
from simulator.search.levels import Draft, Group, Queue, in_every_order
from simulator.search.objective import Objective
from simulator.search.room import pipeline_bytes
from simulator.search.scripts import Lowered, Script, Slots
from simulator.search.seconds import Clock
from simulator.search.sized import Sized, sized
from simulator.search.space import Space, overlaps
from simulator.search.state import State
from simulator.search.untimed import Refused
from topologies.errors import MachineError
from workload.grid import USUAL
from workload.plan import OVERLAPS, Plan

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Item = Family | Group | Queue | Draft | Plan
NEAR = 1.25  # times the best bound of a family: what is placed together, in every rank order


@dataclass(frozen=True)
class Hands:
    """Who simulates plans: `simulate` here, or a crew."""

    simulate: Callable[[Plan], Prediction | MachineError]
    crew: Crew | None = None

    @property
    def count(self) -> int:
        """How many plans can be simulated at once."""
        return 1 if self.crew is None else self.crew.count

    def all(self, plans: Sequence[Plan]) -> Iterator[Prediction | MachineError]:
        """The predictions of some plans, or why there is none."""
        if self.crew is None or len(plans) <= 1:
            return map(self.simulate, plans)
        return self.crew.map(self.simulate, plans)


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
        self._reason, self._least_bytes = "", NEVER
        self._guessed: dict[Plan, Prediction] = {}  # and not come up since

    def run(self) -> Iterator[State]:
        """Search step by step; the last state is the answer."""
        yield self._state(0)
        self._guess()
        bounded = 0
        yield self._state(bounded)
        for part in all_families(self._space, self._machinery, self._hands.crew):
            self._take(part)
            bounded += part.shapes
            yield self._state(bounded)
        while self._may_win():
            bound, _, item = heapq.heappop(self._heap)
            if isinstance(item, Plan):
                self._try([item, *self._next_plans()])
            else:
                self._open(bound, item)
            yield self._state(bounded)

    def _guess(self) -> None:
        """Find any good plan before the space is bounded, which may take long."""
        if (some := likely(self._space)) is None:
            return
        hands = Hands(self._hands.simulate)
        for state in Search(some, self._machinery, hands, self._objective).run():
            if state.found:
                break
        self._simulated += state.simulated
        for prediction in state.found:
            self._guessed[prediction.plan] = prediction

    def _take(self, part: Bounded) -> None:
        """Push the families of a part of the space."""
        self._least_bytes = min(self._least_bytes, part.least_bytes)
        rows = [family.rows for family in part.found]
        fits = np.unique(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)
        self._fitting += int(self._space.orders[fits].sum())
        for family in part.found:
            if isinstance(family, Refused):
                self._refuse(int(self._space.orders[family.rows].sum()), family.reason)
                continue
            bounds = self._bounds(Busiest(family.ledger, family.entries, None))
            self._push(int(bounds.min()), family)

    @property
    def _threshold(self) -> int:
        """What a plan must undercut to be among the fastest."""
        return self._found[self._top - 1][0] if len(self._found) >= self._top else NEVER

    def _may_win(self) -> bool:
        return bool(self._heap) and self._heap[0][0] < self._threshold

    def _state(self, bounded: int) -> State:
        """How far the search is once so many shapes were bounded."""
        values = [(self._objective.of(guess), 0, guess) for guess in self._guessed.values()]
        found = sorted([*self._found[: self._top], *values], key=itemgetter(0))[: self._top]
        is_whole = bounded == len(self._space)
        best = found[0][0] if found else NEVER
        bound = min(self._heap[0][0] if self._heap else NEVER, best) if is_whole else 0
        return State(
            self._space.plans,
            self._fitting,
            self._simulated,
            self._objective.shown(bound),
            self._objective.shown(best),
            tuple(prediction for _, _, prediction in found),
            is_whole and not self._may_win(),
            self._unpredicted,
            self._reason,
            bounded / len(self._space),
            0 if self._least_bytes == NEVER else self._least_bytes,
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
        large = ~pipelines & (least > self._machinery.capacity_bytes)
        self._least_bytes = min(self._least_bytes, int(least[large].min(initial=NEVER)))
        return np.asarray(~large)

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
        known = [self._guessed.pop(plan) for plan in plans if plan in self._guessed]
        fresh = [plan for plan in plans if all(plan != guess.plan for guess in known)]
        self._simulated -= len(known)
        for plan, prediction in chain(
            ((guess.plan, guess) for guess in known),
            zip(fresh, self._hands.all(fresh), strict=True),
        ):
            if isinstance(prediction, MachineError):
                self._refuse(1, str(prediction))
                continue
            self._simulated += 1
            if prediction.memory.peak_bytes <= self._machinery.capacity_bytes:
                value = self._objective.of(prediction)
                insort(self._found, (value, next(self._counter), prediction))
            else:
                self._larger[replace(plan, order=USUAL)] = True
                self._least_bytes = min(self._least_bytes, prediction.memory.peak_bytes)

    def _is_too_large(self, plan: Plan) -> bool:
        """Whether a pipeline has no room, which is known sooner than its time; rank orders change
        nothing about it."""
        usual = replace(plan, order=USUAL)
        if usual not in self._larger:
            nbytes = pipeline_bytes(self._space.question.gpt, usual) if plan.pipe > 1 else 0
            self._larger[usual] = nbytes > self._machinery.capacity_bytes
            if self._larger[usual]:
                self._least_bytes = min(self._least_bytes, nbytes)
        return self._larger[usual]
