"""Nodes of the search tree between families and plans: groups, queues, pipeline nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from simulator.search.bounds.batched_programs import BatchedProgram, PlacedProgram, placed
from simulator.search.bounds.isolated import IsolatedBlocks, Place, PrecedingSlot
from simulator.search.bounds.schedule_bound import schedule_ticks
from simulator.search.bounds.slot_programs import SlotProgram
from simulator.search.bounds.stream_bound import SCHEDULES, Entries
from simulator.search.orders import ORDERS
from simulator.search.rings.ring_numbers import RingNumbers
from simulator.search.space import Order, Space
from topologies.records import record
from workload.plan import Plan
from workload.sizes.arrays import Flags, Indices, Ticks, Values, distinct


@record(slots=False)
class PlanGroup:
    """Rows of the space with the same overlaps, in each rank order.

    By entry: lower bounds of the step's `ticks`, and of the ticks for which devices are `busy`.
    """

    some: PlacedProgram
    slot_program: SlotProgram
    entries: Entries
    ticks: Ticks
    busy: Ticks

    def only(self, keep: Flags) -> PlanGroup:
        """Some of the entries, of the lanes that they need."""
        lanes, which = np.unique(self.entries.lane[keep], return_inverse=True)
        some = placed(self.slot_program.some, self.some.lane[lanes], self.some.orders[lanes])
        own = self.entries.only(keep, which)
        return PlanGroup(some, self.slot_program, own, self.ticks[keep], self.busy[keep])


@record(slots=False)
class PlacedFamily:
    """Entries of a family with their ranks in one order each: `rows` of the space and `orders` by
    lane, `bounds` by entry, the lowest first. They hold for any set of overlaps."""

    rows: Indices
    orders: Indices
    entries: Entries
    bounds: Values

    def only(self, some: slice) -> PlacedFamily:
        """Some of the entries, of the lanes that they need."""
        lanes, which = np.unique(self.entries.lane[some], return_inverse=True)
        at = np.arange(len(self.bounds))[some]
        entries = self.entries.only(at, which.ravel())
        return PlacedFamily(self.rows[lanes], self.orders[lanes], entries, self.bounds[some])

    def within(self, some: BatchedProgram) -> tuple[PlacedProgram, Entries]:
        """The program of some of the rows, placed, and the entries of these."""
        lanes = np.flatnonzero(np.isin(self.rows, some.rows))
        keep = np.isin(self.entries.lane, lanes)
        own = self.entries.only(keep, np.searchsorted(lanes, self.entries.lane[keep]))
        lane = np.searchsorted(some.rows, self.rows[lanes])
        return placed(some, lane, self.orders[lanes]), own


def placed_family(
    some: PlacedProgram, entries: Entries, bounds: Values, threshold: int
) -> PlacedFamily:
    """The entries with bounds below a threshold."""
    at = np.argsort(bounds, kind="stable")[: int((bounds < threshold).sum())]
    own = entries.only(at, entries.lane[at])
    return PlacedFamily(some.rows, some.orders, own, bounds[at]).only(slice(None))


def in_every_order(
    space: Space, some: BatchedProgram, entries: Entries
) -> tuple[PlacedProgram, Entries]:
    """Some rows with their ranks in every order, and the entries for each of them."""
    lanes, which = np.unique(entries.lane, return_inverse=True)
    if not len(lanes):
        return placed(some, lanes, lanes), entries
    orders = [space.order_numbers(row) for row in some.rows[lanes].tolist()]
    counts = np.array([len(each) for each in orders])
    each, first = counts[which], (np.cumsum(counts) - counts)[which]
    lane = np.arange(each.sum()) + np.repeat(first - (np.cumsum(each) - each), each)
    several = placed(some, np.repeat(lanes, counts), np.concatenate(orders))
    return several, entries.only(np.repeat(np.arange(len(which)), each), lane)


def alike(
    some: PlacedProgram, entries: Entries, numbers: RingNumbers
) -> tuple[PlacedProgram, Entries, Indices]:
    """Rows of a placed program with their ranks in one of all orders in which the collectives go
    around the same rings, the entries of these, and which of them each of the entries is like."""
    first, which = numbers.alike(some)
    few = placed(some.base, some.lane[first], some.orders[first])
    e = entries
    columns = which[e.lane], e.micro_batches, e.schedule, e.vpp, e.chunk
    ones, number = distinct(columns)
    return few, e.only(np.array(ones, dtype=np.int64), which[e.lane[ones]]), number


@record(slots=False)
class Queue:
    """Entries `at` of some slots in the order of their `bounds`; `busy` ticks are those of all
    entries."""

    slots: IsolatedBlocks
    at: Indices
    bounds: Values
    busy: Ticks

    def later(self) -> Queue:
        """All but the first."""
        return replace(self, at=self.at[1:], bounds=self.bounds[1:])

    def plans(self, space: Space) -> list[Plan]:
        """The first entry as plans: by each dispatcher, and with and, in a pipeline, without
        overlapped messages, which bounds of slots leave out."""
        at, entries, some = int(self.at[0]), self.slots.entries, self.slots.some
        lane, pp = int(entries.lane[at]), int(entries.pp[at])
        schedule, vpp = SCHEDULES[int(entries.schedule[at])], int(entries.vpp[at])
        overlaps = [self.slots.slot_program.overlap]
        if pp > 1 and "overlap" not in space.problem.fixed:
            overlaps.append(tuple(switch for switch in overlaps[0] if switch != "pp"))
        ranks = ORDERS[int(some.orders[lane])]
        row = int(some.rows[lane])
        return [
            space.plan(row, Order(schedule, vpp, overlap, ranks, dispatcher))
            for overlap, dispatcher in product(overlaps, space.dispatchers(row))
        ]


@record(slots=False)
class PipelineNode:
    """A pipelined plan, and lower bounds of its slots."""

    plan: Plan
    slots: IsolatedBlocks
    at: int
    busy: int

    def ticks(self) -> int:
        """A lower bound of its step."""
        entries = self.slots.entries
        nbytes = self.slots.message_bytes(self.at)
        behaviour, op_bounds = self.slots.slot_program.lowered.behaviour, self.slots.op_bounds
        links = op_bounds.link_ticks(self.plan.grid, nbytes)
        if behaviour.scatter_gather:  # some are sent in parts
            parts = op_bounds.link_ticks(self.plan.grid, nbytes // self.plan.tp)
            links = [*map(min, links, parts)]
        chunks = [
            entries.chunk_of(self.at, number) for number in range(self.plan.pp * self.plan.vpp)
        ]
        ends = schedule_ticks(
            self.plan, self._slot_ticks, chunks, links, framework=behaviour.messages
        )
        steps = self.slots.steps_of_stages(self.at)
        return max(
            max(compute + before, streams) + after
            for (compute, streams), (before, after) in zip(ends, steps, strict=True)
        )

    def _slot_ticks(self, place: Place, before: PrecedingSlot | None) -> tuple[int, int]:
        return self.slots.slot(self.at, place, after=before)
