"""What is left of a share of the space, best first: bounds are refined until a plan comes out.

A family is all shapes with the same program, bounded by their busiest streams; it opens into
groups, one for each set of overlaps, bounded likewise. Until then collectives last as long as on
the fastest ring of all rank orders; in a group each plan has its order, and its rings. A group
becomes a queue of plans, bounded by playing their slots alone; from a queue the next one becomes a
draft or, without a pipeline, a plan; and a draft becomes a plan, bounded by playing its schedule.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.search.bounds.batched_programs import BatchedProgram, sized
from simulator.search.bounds.isolated import IsolatedBlocks
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.peak_memory import alone_bytes, pipeline_bytes
from simulator.search.bounds.slot_programs import LoweredSlots, SlotProgram, Slots
from simulator.search.bounds.stream_bound import (
    SCHEDULES,
    BusiestStream,
    Entries,
    ledger,
    step_ticks,
)
from simulator.search.bounds.unsupported import RefusalTimes, Refused
from simulator.search.objective import Objective
from simulator.search.root_nodes import NEVER, Bounded, Family, Machinery, bounded
from simulator.search.space import Space, overlaps
from simulator.search.tree_nodes import Draft, PlanGroup, Queue, in_every_order
from workload.grid import USUAL
from workload.passes.table import OVERLAPS
from workload.plan import Plan

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Item = Family | PlanGroup | Queue | Draft | Plan
Candidate = tuple[int, Plan]  # with its bound
NEAR = 1.25  # times the best bound of a family: what is placed together, in every rank order
DIVES = 3  # families that are opened for one plan of theirs, if that is enough for a first one
SOONEST = (Plan, Queue, PlanGroup)  # what is nearest to a plan, as long as none is found


@dataclass
class Tally:
    """What came up: how many shapes were bounded, how many plans of them may fit and cannot be
    predicted, one of them for that reason, and what those without room need at least."""

    shapes: int = 0
    fitting: int = 0
    unpredicted: int = 0
    reason: str = ""
    least_bytes: int = NEVER

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.shapes + other.shapes,
            self.fitting + other.fitting,
            self.unpredicted + other.unpredicted,
            _first(self.reason, other.reason),
            min(self.least_bytes, other.least_bytes),
        )

    def refuse(self, plans: int, reason: str) -> None:
        """Count plans that cannot be predicted."""
        self.unpredicted += plans
        self.reason = _first(self.reason, reason)

    def needs(self, least_bytes: int) -> None:
        """Note what a plan without room needs."""
        self.least_bytes = min(self.least_bytes, least_bytes)


def _first(*reasons: str) -> str:
    """The first of some reasons in the alphabet, whichever process came upon it."""
    return min(filter(None, reasons), default="")


class Frontier:
    """The plans of some rows of a space that may still be among the best.

    `threshold` is the value that a plan must undercut; whoever simulates plans sets it. As long as
    it is NEVER, and in the first families until a plan came out of one, whatever leads to some plan
    soon comes first.
    """

    def __init__(
        self, space: Space, machinery: Machinery, objective: Objective, rows: Iterable[Ints]
    ) -> None:
        self.threshold = NEVER
        self.tally = Tally()
        self._space, self._machinery, self._objective = space, machinery, objective
        self._clock = OpBounds(space, machinery.costs, machinery.fabric)
        self._times = RefusalTimes(machinery.costs, machinery.fabric)
        self._unbounded = deque(rows)
        self._heap: list[tuple[int, int, Item]] = []
        self._soon: list[tuple[int, int, int, Item]] = []
        self._counter = count()
        self._opened, self._had_plan = 0, False
        self._larger: dict[Plan, bool] = {}  # than the device's memory
        self._slots: dict[tuple[object, ...], Slots] = {}

    @property
    def lowest(self) -> int:
        """The least value that a plan can have; NEVER where none undercuts the threshold."""
        if self._unbounded:
            return 0
        bounds = [bound for _, bound, _, _ in self._soon]
        least = min([*bounds, self._heap[0][0] if self._heap else NEVER])
        return least if least < self.threshold else NEVER

    def advance(self, most: int = 1) -> list[Candidate]:
        """Refine one bound, the one that matters most; or take the next plans of whose bounds there
        is nothing left to refine, those that have room as far as that is known before they are
        simulated."""
        if self._unbounded:
            self._take(bounded(self._clock, self._times, self._room, self._unbounded.popleft()))
            return []
        found: list[Candidate] = []
        while self.lowest < NEVER and len(found) < most:
            *_, bound, number, item = heapq.heappop(self._nearest)
            if not isinstance(item, Plan):
                if found:
                    heapq.heappush(self._heap, (bound, number, item))
                else:
                    self._open(bound, item)
                break
            self._had_plan = True
            if not self._is_too_large(item):
                found.append((bound, item))
        return found

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Note that a plan has no room; rank orders change nothing about it."""
        self._larger[replace(plan, order=USUAL)] = True
        self.tally.needs(peak_bytes)

    @property
    def _dives(self) -> bool:
        return self.threshold == NEVER or (not self._had_plan and self._opened <= DIVES)

    @property
    def _room(self) -> int:
        return self._machinery.capacity_bytes

    @property
    def _nearest(self) -> list[Any]:
        """The heap whose first item is looked at next."""
        if self._soon and not self._dives:
            for _, bound, number, item in self._soon:
                heapq.heappush(self._heap, (bound, number, item))
            self._soon.clear()
        return self._soon or self._heap

    def _take(self, part: Bounded) -> None:
        """Push the families of a part of the space."""
        rows = [family.rows for family in part.found]
        fits = np.unique(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)
        self.tally.shapes += part.shapes
        self.tally.fitting += int(self._space.orders[fits].sum())
        self.tally.needs(part.least_bytes)
        for family in part.found:
            if isinstance(family, Refused):
                plans = int(self._space.orders[family.rows].sum())
                self.tally.refuse(plans, family.reason)
                continue
            bounds = self._bounds(BusiestStream(family.ledger, family.entries, None))
            self._push(int(bounds.min()), family)

    def _push(self, bound: int, item: Item) -> None:
        if bound < self.threshold:
            heapq.heappush(self._heap, (bound, next(self._counter), item))

    def _push_soon(self, bound: int, item: PlanGroup | Queue | Plan) -> None:
        """Open it next as long as nothing is found: what it takes may spare all the others."""
        if self._dives:
            level = SOONEST.index(type(item))
            heapq.heappush(self._soon, (level, bound, next(self._counter), item))
        else:
            self._push(bound, item)

    def _open(self, bound: int, item: Family | PlanGroup | Queue | Draft) -> None:
        if isinstance(item, Family):
            self._open_family(item)
        elif isinstance(item, PlanGroup):
            self._open_group(item)
        elif isinstance(item, Queue):
            self._open_queue(item)
        elif not self._larger.get(replace(item.plan, order=USUAL), False):
            ticks, busy = np.array([item.ticks()]), np.array([item.busy])
            self._push(max(bound, int(self._objective.bound(ticks, busy)[0])), item.plan)

    def _open_family(self, family: Family) -> None:
        self._opened += 1
        bounds = self._bounds(busiest := BusiestStream(family.ledger, family.entries, None))
        at = np.argsort(bounds, kind="stable")[: int((bounds < self.threshold).sum())]
        near = int(np.searchsorted(bounds[at], bounds[at[0]] * NEAR, "right"))
        count = 1 if self._dives else near
        if len(later := at[count:]):
            entries = busiest.entries.only(later, busiest.entries.lane[later])
            self._push(int(bounds[later[0]]), replace(family, entries=entries))
        entries = busiest.entries.only(at[:count], busiest.entries.lane[at[:count]])
        rows, schedule = family.rows[entries.lane], SCHEDULES[int(entries.schedule[0])]
        for plain in sized(self._space, np.unique(rows), overlap=(), schedule=schedule):
            keep = np.isin(rows, plain.rows)
            own = entries.only(keep, np.searchsorted(plain.rows, rows[keep]))
            self._push_groups(LoweredSlots(plain, self._slots), own)

    def _push_groups(self, lowered: LoweredSlots, entries: Entries) -> None:
        """Push some rows with each set of overlaps."""
        some, entries = in_every_order(self._space, SlotProgram(lowered, OVERLAPS).some, entries)
        known = ledger(self._clock, some)
        fresh = self._bounds(BusiestStream(known, entries, None)) < self.threshold
        entries = entries.only(fresh, entries.lane[fresh])
        shape = self._space.shape(int(some.rows[0])) | {"pipe": 1}
        for overlap in overlaps(self._space.question, shape) if fresh.any() else ():
            busiest = BusiestStream(known, entries, overlap)
            ticks, busy = step_ticks(busiest), busiest.busy()
            bounds = self._objective.bound(ticks, busy)
            keep = bounds < self.threshold
            if keep.any():
                group = PlanGroup(some, SlotProgram(lowered, overlap), entries, ticks, busy)
                self._push_soon(int(bounds.min()), group.only(keep))

    def _bounds(self, busiest: BusiestStream) -> Ints:
        return self._objective.bound(step_ticks(busiest), busiest.busy())

    def _open_group(self, group: PlanGroup) -> None:
        keep = self._objective.bound(group.ticks, group.busy) < self.threshold
        keep &= self._have_room(group.script.some)[group.some.lane[group.entries.lane]]
        if not keep.any():
            return
        group = group.only(keep)
        slots = IsolatedBlocks(self._clock, group.some, group.entries, group.script)
        bounds = self._objective.bound(np.maximum(step_ticks(slots), group.ticks), group.busy)
        at = np.argsort(bounds, kind="stable")[: int((bounds < self.threshold).sum())]
        if len(at):
            self._push_soon(int(bounds[at[0]]), Queue(slots, at, bounds[at], group.busy))

    def _open_queue(self, queue: Queue) -> None:
        at, bound = int(queue.at[0]), int(queue.bounds[0])
        for plan in queue.plans(self._space):
            if plan.pipe == 1 or self._dives:
                self._push_soon(bound, plan)
            else:
                self._push(bound, Draft(plan, queue.slots, at, int(queue.busy[at])))
        if len(queue.at) > 1:
            self._push(int(queue.bounds[1]), queue.later())

    def _have_room(self, some: BatchedProgram) -> Flags:
        """Which rows may fit; what is known of pipelines' memory was weighed before."""
        pipelines = self._space.columns["pipe"][some.rows] > 1
        if pipelines.all():
            return pipelines
        least = alone_bytes(some, self._space.question.gpt.layers)
        large = ~pipelines & (least > self._room)
        self.tally.needs(int(least[large].min(initial=NEVER)))
        return np.asarray(~large)

    def _is_too_large(self, plan: Plan) -> bool:
        """Whether a pipeline has no room, which is known sooner than its time."""
        usual = replace(plan, order=USUAL)
        if usual not in self._larger:
            nbytes = pipeline_bytes(self._space.question.gpt, usual) if plan.pipe > 1 else 0
            self._larger[usual] = nbytes > self._room
            if self._larger[usual]:
                self.tally.needs(nbytes)
        return self._larger[usual]
