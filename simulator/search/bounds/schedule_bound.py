"""A lower bound of a pipeline: its schedule simulated slot by slot, messages included.

Slots have their bounds without contention (`isolated.py`): those of the first micro-batch, which
adds to no gradients, of the last, which sums them over ranks, and of all between. Interference that
slots of the last micro-batch carry into the next slot is included. Waits between slots and messages
are exact; a link takes as long as its fastest ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulator.pipeline.schedule_sim import SlotSchedule, SlotTimes, simulate_schedule
from simulator.pipeline.steady_rounds import FoldedSchedule, folded_plan, grown
from simulator.search.bounds.isolated import (
    BETWEEN,
    FIRST_ONE,
    LAST_ONE,
    Chunk,
    Place,
    PrecedingSlot,
)
from topologies.session import session_cached
from workload.pipeline.message_order import order_of_messages
from workload.pipeline.schedule import FORWARD, Slot, slots
from workload.pipeline.slot import INPUT
from workload.plan import Plan

SlotTicks = Callable[[Place, PrecedingSlot | None], tuple[int, int]]
Orders = tuple[tuple[Slot, ...], ...]
SortOfSlot = tuple[str, int, str]  # its work, its chunk, and which of the micro-batches it is of


@dataclass(frozen=True)
class _KnownSlots:
    """The ticks of slots, each asked for once, by the number of their chunk: that is hashed sooner
    than its layers."""

    pp: int
    chunks: Sequence[Chunk]
    slot_ticks: SlotTicks
    _known: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def _numbers(self) -> list[int]:
        """For each chunk the last one like it."""
        like = {chunk: number for number, chunk in enumerate(self.chunks)}
        return [like[chunk] for chunk in self.chunks]

    def ticks(self, stage: int, order: Sequence[SortOfSlot]) -> list[tuple[int, int]]:
        """Those of a stage's slots in their order."""
        before: tuple[str, int] | None = None
        row = []
        for work, chunk, which in order:
            number = self._numbers[chunk * self.pp + stage]
            key = work, number, which, before
            if key not in self._known:
                ahead = before and (before[0], self.chunks[before[1]])
                self._known[key] = self.slot_ticks((work, self.chunks[number], which), ahead)
            row.append(self._known[key])
            before = (work, number) if which == LAST_ONE else None
        return row


def schedule_ticks(
    plan: Plan,
    slot_ticks: SlotTicks,
    chunks: Sequence[Chunk],
    links: Sequence[int],
    *,
    habit: str = "",
) -> list[tuple[int, int]]:
    """Lower bounds of the end of each stage's last slot, and of all streams of its last backward
    slots, with messages as a stack with this habit has them.

    `slot_ticks` bounds both of a slot, given the slot before it if that has the last micro-batch.
    """
    small = folded_plan(plan)
    known = _KnownSlots(plan.pp, chunks, slot_ticks)
    while True:
        orders = _orders(small)
        every = [known.ticks(*stage) for stage in enumerate(sorts_of(small))]
        pp = SlotSchedule(
            orders=orders,
            ticks=[[compute for compute, _ in own] for own in every],
            links=[(ticks, ticks) for ticks in links],
            messages=order_of_messages(habit, plan),
            micro_batches=small.micro_batches,
        )
        times = simulate_schedule(pp)
        folded = FoldedSchedule(plan, small, pp, times)
        if folded.is_steady:
            shift = folded.shift_ticks
            ends = [_ends(small, *own) for own in zip(orders, times, every, strict=True)]
            return [(compute + shift, streams + shift) for compute, streams in ends]
        small = grown(plan, small)


def _ends(
    small: Plan, order: Sequence[Slot], times: SlotTimes, ticks: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """When a stage's slots end, and when all streams of its last backward slots have: norm and
    update wait for the sums of gradients that these begin."""
    last, every = small.micro_batches - 1, zip(order, times.start, ticks, strict=True)
    streams = (
        start + streams
        for slot, start, (_, streams) in every
        if slot.micro_batch == last and slot.work != FORWARD
    )
    return times.end[-1], max(streams, default=0)


def _sort(slot: Slot, micro_batches: int) -> SortOfSlot:
    work = "backward" if slot.work == INPUT else slot.work
    if slot.micro_batch == micro_batches - 1:
        return work, slot.chunk, LAST_ONE
    return work, slot.chunk, BETWEEN if slot.micro_batch else FIRST_ONE


def _orders(plan: Plan) -> Orders:
    return _known_orders(plan.schedule, plan.pp, plan.micro_batches, plan.vpp)


def sorts_of(plan: Plan) -> tuple[tuple[SortOfSlot, ...], ...]:
    """Of each stage the sorts of its slots, in order."""
    return _known_sorts(plan.schedule, plan.pp, plan.micro_batches, plan.vpp)


@session_cached(64)
def _known_sorts(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> tuple[tuple[SortOfSlot, ...], ...]:
    every = _known_orders(schedule, stages, micro_batches, chunks)
    return tuple(tuple(_sort(slot, micro_batches) for slot in order) for order in every)


@session_cached(64)
def _known_orders(schedule: str, stages: int, micro_batches: int, chunks: int) -> Orders:
    return tuple(slots(schedule, stage, stages, micro_batches, chunks) for stage in range(stages))
