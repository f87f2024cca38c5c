"""The open nodes of a share of the space, refined in the order of their lower bounds.

Levels of the tree, each with a closer bound than the one before:

1. Family: all shapes with the same program. Bound: the busiest stream of each slot, collectives on
   the fastest ring of any rank order. With an incumbent, of entries that are low those in rank
   orders in which they are low: not all axes are inside the nodes.
2. Group: one set of overlaps of a family, every rank order. Bound: the same, on each plan's rings.
3. Queue: the plans of a group in the order of their bounds: slots simulated without contention.
4. Pipeline node: a pipelined plan. Bound: its schedule, simulated with these slots and messages.
5. Plan: to be simulated.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np

from simulator.search.bounds.batched_programs import BatchedProgram, PlacedProgram, of_rows, sized
from simulator.search.bounds.isolated import IsolatedBlocks
from simulator.search.bounds.isolated_times import Slots
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import PartTimes, part_times
from simulator.search.bounds.peak_memory import pipeline_bytes
from simulator.search.bounds.slot_programs import LoweredSlots, SlotProgram
from simulator.search.bounds.stream_bound import (
    SCHEDULES,
    BusiestStream,
    Entries,
    step_ticks,
    ticks_by_stage,
)
from simulator.search.bounds.unsupported import RefusalTimes, Refused
from simulator.search.objective import Objective
from simulator.search.orders import overlaps
from simulator.search.progress import Tally
from simulator.search.root_nodes import (
    NEVER,
    Bounded,
    Family,
    Machinery,
    alone_may_fit,
    bounded,
    parts_of,
    that_may_fit,
    times_for,
)
from simulator.search.space import Order, Space
from simulator.search.tree_nodes import (
    PipelineNode,
    PlacedFamily,
    PlanGroup,
    Queue,
    alike,
    in_every_order,
    placed_family,
)
from workload.grid import USUAL
from workload.overlaps import OVERLAPS
from workload.passes.stack import of_lowering
from workload.plan import Plan
from workload.sizes.arrays import Flags, Indices, Values

Item = Family | PlacedFamily | PlanGroup | Queue | PipelineNode | Plan
Candidate = tuple[int, Plan]  # with its bound
Candidates = dict[int, list[Candidate]]  # by family of plans, those with the lowest bounds first
NEAR = 1.25  # times the best bound of a family: entries opened together, in every rank order
FEW = 0.2  # of a family's entries: so many low ones are bounded in every rank order at once
TRIED = 3  # plans of a family of plans
DIVES = 3  # families that are opened depth-first
SOONEST = (Plan, Queue, PlanGroup)  # the order of a depth-first search


def keep(candidates: Candidates, code: int, bound: int, plan: Plan) -> None:
    """Keep a plan, if it is among the TRIED of its family with the lowest bounds."""
    own = candidates.setdefault(code, [])
    if len(own) < TRIED or (bound, str(plan)) < (own[-1][0], str(own[-1][1])):
        insort(own, (bound, plan), key=lambda each: (each[0], str(each[1])))
        del own[TRIED:]


class Frontier:
    """The open nodes of a space.

    `threshold` is the value that a plan must undercut; the caller sets it. Until enough plans are
    found (NEVER), and in the first families, nodes nearest to a plan are refined first: depth-first
    until the first incumbent, which prunes the rest.
    """

    def __init__(self, space: Space, machinery: Machinery, objective: Objective) -> None:
        self.threshold = NEVER
        self.tally = Tally()
        self._space, self._objective = space, objective
        self._capacity = machinery.capacity_bytes
        self._op_bounds = OpBounds(space, machinery.costs, machinery.fabric)
        self._times = RefusalTimes(machinery.costs, machinery.fabric)
        self._unbounded = deque(parts_of(space, np.arange(len(space), dtype=np.int64)))
        self.candidates: Candidates = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._soon: list[tuple[int, int, int, Item]] = []
        self._counter = count()
        self._opened, self._had_plan = 0, False
        self._larger: dict[Plan, bool] = {}  # than the device's memory
        self._slots: dict[tuple[object, ...], Slots] = {}

    @property
    def is_bounded(self) -> bool:
        """Whether all shapes are bounded."""
        return not self._unbounded

    @property
    def lowest(self) -> int:
        """The least value that a plan can have; NEVER where none undercuts the threshold."""
        if self._unbounded:
            return 0
        bounds = [bound for _, bound, _, _ in self._soon]
        least = min([*bounds, self._heap[0][0] if self._heap else NEVER])
        return least if least < self.threshold else NEVER

    def advance(self, most: int = 1) -> list[Candidate]:
        """Refine one node, or return up to `most` next plans to simulate that may fit."""
        if self._unbounded:
            rows = self._unbounded.popleft()
            how = self._op_bounds, self._times, self._capacity, rows
            self._take(bounded(*how, by_order=self.threshold == NEVER))
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
        """Note that a plan does not fit, in any rank order."""
        self._larger[replace(plan, order=USUAL)] = True
        self.tally.needs(peak_bytes)

    @property
    def _dives(self) -> bool:
        return self.threshold == NEVER or (not self._had_plan and self._opened <= DIVES)

    @property
    def _nearest(self) -> list[Any]:
        """The heap whose first item is refined next."""
        if self._soon and not self._dives:
            for _, bound, number, item in self._soon:
                heapq.heappush(self._heap, (bound, number, item))
            self._soon.clear()
        return self._soon or self._heap

    def _take(self, part: Bounded) -> None:
        """Push the families of a part of the space."""
        rows = [np.zeros(0, dtype=np.int64), *(family.fitting for family in part.found)]
        self.tally.shapes += part.shapes
        self.tally.fitting += int(self._space.orders[np.unique(np.concatenate(rows))].sum())
        self.tally.needs(part.least_bytes)
        for family in part.found:
            if isinstance(family, Refused):
                self.tally.refuse(int(self._space.orders[family.rows].sum()), family.reason)
                continue
            bounds = self._least(family.part_times, family.entries)
            self._note_candidates(family, bounds)
            if self.threshold == NEVER:
                self._push(int(bounds.min()), replace(family, some=None, whole=None))
            elif (low := bounds < self.threshold).any():
                self._take_low(family, bounds, low)

    def _note_candidates(self, family: Family, bounds: Values) -> None:
        """Keep the plans with the lowest bounds of each family of plans, in the usual order of
        ranks with all overlaps."""
        entries = family.entries
        rows = family.rows[entries.lane]
        codes = self._space.families[rows]
        for code in np.unique(codes).tolist():
            own = np.flatnonzero(codes == code)
            for at in own[np.argsort(bounds[own], kind="stable")[:TRIED]].tolist():
                row, bound = int(rows[at]), int(bounds[at])
                name = SCHEDULES[int(entries.schedule[at])]
                shape = self._space.shape(row)
                switches = overlaps(self._space.problem, shape)[0]
                ranks, ways = self._space.rank_orders(row), self._space.dispatchers(row)
                order = Order(name, int(entries.vpp[at]), switches, ranks[0], ways[0])
                keep(self.candidates, code, bound, self._space.plan(row, order))

    def _take_low(self, family: Family, bounds: Values, low: Flags) -> None:
        """Push those entries of a family that are low: where they are few, those alone that are so
        in a rank order."""
        low_ones, least_bytes = that_may_fit(self._space, family, low, self._capacity)
        self.tally.needs(least_bytes)
        if not len(low_ones.lane):
            return
        if family.some is not None and low.mean() < FEW:
            self._place(family.some, low_ones)
        else:
            own = replace(family, entries=low_ones, some=None, whole=None)
            self._push(int(bounds[low].min()), own)

    def _place(self, some: BatchedProgram, low_ones: Entries) -> None:
        """Push those of some entries that are low in a rank order."""
        several, entries = in_every_order(self._space, some, low_ones)
        few, own, which = alike(several, entries, self._op_bounds.rings)
        bounds = self._least(part_times(self._op_bounds, few), own)[which]
        if len((found := placed_family(several, entries, bounds, self.threshold)).bounds):
            self._push(int(found.bounds[0]), found)

    def _push(self, bound: int, item: Item) -> None:
        if bound < self.threshold:
            heapq.heappush(self._heap, (bound, next(self._counter), item))

    def _push_soon(self, bound: int, item: PlanGroup | Queue | Plan) -> None:
        """Depth-first until the first incumbent; it prunes the rest."""
        if self._dives:
            level = SOONEST.index(type(item))
            heapq.heappush(self._soon, (level, bound, next(self._counter), item))
        else:
            self._push(bound, item)

    def _open(
        self, bound: int, item: Family | PlacedFamily | PlanGroup | Queue | PipelineNode
    ) -> None:
        if isinstance(item, Family):
            self._open_family(item)
        elif isinstance(item, PlacedFamily):
            self._open_placed(item)
        elif isinstance(item, PlanGroup):
            self._open_group(item)
        elif isinstance(item, Queue):
            self._open_queue(item)
        elif not self._larger.get(replace(item.plan, order=USUAL), False):
            ticks, busy = np.array([item.ticks()]), np.array([item.busy])
            self._push(max(bound, int(self._objective.bound(ticks, busy)[0])), item.plan)

    def _open_family(self, family: Family) -> None:
        self._opened += 1
        bounds = self._bounds(busiest := BusiestStream(family.part_times, family.entries, None))
        at = np.argsort(bounds, kind="stable")[: int((bounds < self.threshold).sum())]
        if not len(at):  # those with lower bounds do not fit
            return
        near = int(np.searchsorted(bounds[at], bounds[at[0]] * NEAR, "right"))
        count = 1 if self._dives else near
        if len(later := at[count:]):
            entries = busiest.entries.only(later, busiest.entries.lane[later])
            self._push(int(bounds[later[0]]), replace(family, entries=entries))
        entries = busiest.entries.only(at[:count], busiest.entries.lane[at[:count]])
        rows = family.rows[entries.lane]
        for lowered in self._lowered(rows, entries):
            plain = lowered.plain
            keep = np.isin(rows, plain.rows)
            own = entries.only(keep, np.searchsorted(plain.rows, rows[keep]))
            base = SlotProgram(lowered, OVERLAPS).some
            self._push_groups(lowered, *in_every_order(self._space, base, own))

    def _open_placed(self, family: PlacedFamily) -> None:
        """Open the entries that are near to the lowest one, and leave the others for later."""
        self._opened, bounds = self._opened + 1, family.bounds
        low = int(np.searchsorted(bounds, self.threshold))
        count = int(np.searchsorted(bounds[:low], bounds[0] * NEAR, "right"))
        if count < low:
            self._push(int(bounds[count]), family.only(slice(count, low)))
        family = family.only(slice(count))
        for lowered in self._lowered(family.rows, family.entries):
            self._push_groups(lowered, *family.within(SlotProgram(lowered, OVERLAPS).some))

    def _lowered(self, rows: Indices, entries: Entries) -> Iterator[LoweredSlots]:
        """The programs of some rows without overlaps."""
        behaviour, schedule = self._space.problem.behaviour, SCHEDULES[int(entries.schedule[0])]
        how: dict[str, Any] = {"schedule": schedule, "behaviour": of_lowering(behaviour)}
        for plain in sized(self._space, np.unique(rows), overlap=(), **how):
            yield LoweredSlots(plain, self._slots, of_rows(behaviour, self._space, plain.rows))

    def _push_groups(self, lowered: LoweredSlots, some: PlacedProgram, entries: Entries) -> None:
        """Push some rows with each set of overlaps."""
        known = part_times(self._op_bounds, some)
        fresh = self._least(known, entries) < self.threshold
        entries = entries.only(fresh, entries.lane[fresh])
        shape = self._space.shape(int(some.rows[0])) | {"pp": 1}
        for overlap in overlaps(self._space.problem, shape) if fresh.any() else ():
            busiest = BusiestStream(known, entries, overlap)
            ticks, busy = step_ticks(busiest), busiest.busy()
            bounds = self._objective.bound(ticks, busy)
            keep = bounds < self.threshold
            if keep.any():
                group = PlanGroup(some, SlotProgram(lowered, overlap), entries, ticks, busy)
                self._push_soon(int(bounds.min()), group.only(keep))

    def _least(self, known: PartTimes, entries: Entries) -> Values:
        return self._bounds(BusiestStream(times_for(entries, known), entries, None))

    def _bounds(self, busiest: BusiestStream) -> Values:
        return self._objective.bound(step_ticks(busiest), busiest.busy())

    def _open_group(self, group: PlanGroup) -> None:
        keep = self._objective.bound(group.ticks, group.busy) < self.threshold
        keep &= self._may_fit(group.slot_program.some)[group.some.lane[group.entries.lane]]
        if not keep.any():
            return
        group = group.only(keep)
        slots = IsolatedBlocks(self._op_bounds, group.some, group.entries, group.slot_program)
        several = chain([group.ticks], ticks_by_stage(slots))
        bounds = self._objective.bound_by(several, group.busy, self.threshold)
        at = np.argsort(bounds, kind="stable")[: int((bounds < self.threshold).sum())]
        if len(at):
            self._push_soon(int(bounds[at[0]]), Queue(slots, at, bounds[at], group.busy))

    def _open_queue(self, queue: Queue) -> None:
        at, bound = int(queue.at[0]), int(queue.bounds[0])
        for plan in queue.plans(self._space):
            if plan.pp > 1 and not self._dives:
                self._push(bound, PipelineNode(plan, queue.slots, at, int(queue.busy[at])))
            elif not self._is_too_large(plan):
                self._push_soon(bound, plan)
        if len(queue.at) > 1:
            self._push(int(queue.bounds[1]), queue.later())

    def _may_fit(self, some: BatchedProgram) -> Flags:
        """Which rows may fit; the memory of pipelines was bounded before."""
        flags, least_bytes = alone_may_fit(self._space, some, self._capacity)
        self.tally.needs(least_bytes)
        return flags

    def _is_too_large(self, plan: Plan) -> bool:
        """Whether a pipeline does not fit, which costs less to find than its time, and more than
        the bound of a pipeline node."""
        usual, asked = replace(plan, order=USUAL), self._space.problem
        if usual not in self._larger:
            nbytes = 0
            if plan.pp > 1:
                nbytes = pipeline_bytes(asked.gpt, usual, asked.behaviour, self._capacity)
            self._larger[usual] = nbytes > self._capacity
            if self._larger[usual]:
                self.tally.needs(nbytes)
        return self._larger[usual]
