"""What a search opens, from many plans to one: groups, queues, drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.search.bounds.batched_programs import BatchedProgram, PlacedProgram, placed
from simulator.search.bounds.isolated import Before, IsolatedBlocks
from simulator.search.bounds.schedule_bound import Place, paced_ticks
from simulator.search.bounds.slot_programs import SlotProgram
from simulator.search.bounds.stream_bound import SCHEDULES, Entries, ModelEnds
from simulator.search.rank_orders import ORDERS
from simulator.search.space import Order, Space
from workload.plan import Plan

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class PlanGroup:
    """Some rows of the space with the same overlaps, and in each rank order: entries that may win,
    and the bounds of each, on a step's time and on how long devices compute in it."""

    some: PlacedProgram
    script: SlotProgram
    entries: Entries
    ticks: Ints
    busy: Ints

    def only(self, keep: Flags) -> PlanGroup:
        """Some of the entries, of the lanes that they need."""
        lanes, which = np.unique(self.entries.lane[keep], return_inverse=True)
        some = placed(self.script.some, self.some.lane[lanes], self.some.orders[lanes])
        own = self.entries.only(keep, which)
        return PlanGroup(some, self.script, own, self.ticks[keep], self.busy[keep])


def in_every_order(
    space: Space, some: BatchedProgram, entries: Entries
) -> tuple[PlacedProgram, Entries]:
    """Some rows with their ranks in every order, and the entries for each of them."""
    lanes, which = np.unique(entries.lane, return_inverse=True)
    rows = some.rows[lanes]
    orders = [[ORDERS.index(name) for name in space.rank_orders(row)] for row in rows.tolist()]
    counts = np.array([len(names) for names in orders])
    each, first = counts[which], (np.cumsum(counts) - counts)[which]
    lane = np.arange(each.sum()) + np.repeat(first - (np.cumsum(each) - each), each)
    several = placed(some, np.repeat(lanes, counts), np.concatenate(orders))
    return several, entries.only(np.repeat(np.arange(len(which)), each), lane)


@dataclass(frozen=True)
class Queue:
    """Entries `at` of some slots that wait to be drafted one by one, those with the lowest bounds
    first, and how long devices compute in all entries."""

    slots: IsolatedBlocks
    at: Ints
    bounds: Ints
    busy: Ints

    def later(self) -> Queue:
        """All but the first."""
        return replace(self, at=self.at[1:], bounds=self.bounds[1:])

    def plans(self, space: Space) -> list[Plan]:
        """The first of them with and, in a pipeline, without overlapped messages: bounds leave
        these out."""
        at, entries, some = int(self.at[0]), self.slots.entries, self.slots.some
        lane, pipe = int(entries.lane[at]), int(entries.pipe[at])
        schedule, interleave = SCHEDULES[int(entries.schedule[at])], int(entries.interleave[at])
        overlaps = [self.slots.script.overlap]
        if pipe > 1 and "overlap" not in space.question.fixed:
            overlaps.append(tuple(switch for switch in overlaps[0] if switch != "pp"))
        ranks = ORDERS[int(some.orders[lane])]
        return [
            space.plan(int(some.rows[lane]), Order(schedule, interleave, overlap, ranks))
            for overlap in overlaps
        ]


@dataclass(frozen=True)
class Draft:
    """A plan of a pipeline, and what its slots take at least."""

    plan: Plan
    slots: IsolatedBlocks
    at: int
    busy: int

    def ticks(self) -> int:
        """What its step takes at least."""
        entries = self.slots.entries
        nbytes = self.slots.message_bytes(self.at)
        links = self.slots.clock.link_ticks(self.plan.grid, nbytes)
        over = paced_ticks(self.plan, self._slot_ticks, links)
        return over + sum(
            int(part[self.at]) for part in self.slots.step(entries.interleave, ModelEnds())
        )

    def _slot_ticks(self, place: Place, before: Before | None) -> int:
        work, ends, last = place
        return int(self.slots.slot(work, ends, last=last, after=before)[self.at])
