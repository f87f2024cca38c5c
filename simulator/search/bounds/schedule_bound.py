"""A lower bound of a pipeline: its schedule simulated slot by slot, messages included.

Slots have their bounds without contention (`isolated.py`): those of the first micro-batch, which
adds to no gradients, of the last, which sums them over ranks, and of all between. Interference that
slots of the last micro-batch carry into the next slot is included. Waits between slots and messages
are exact; a link takes as long as its fastest ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.pipeline.schedule_messages import messages_of
from simulator.pipeline.schedule_sim import SlotSchedule, SlotTimes, simulate_schedule
from simulator.search.bounds.isolated import (
    BETWEEN,
    FIRST_ONE,
    LAST_ONE,
    Chunk,
    Place,
    PrecedingSlot,
)
from topologies.records import record
from topologies.session import session_cached
from workload.pipeline.order import Order
from workload.pipeline.slot import FORWARD, INPUT, Slot
from workload.plan import Plan
from workload.sizes.arrays import Indices, Ticks
from workload.stages import Shape, order_of, order_of_messages, shape_of

SlotTicks = Callable[[Place, PrecedingSlot | None], tuple[int, int]]
SortOfSlot = tuple[str, int, str]  # its work, its chunk, and which of the micro-batches it is of
# And the work and chunk of the slot before it, if that has the last micro-batch.
PlaceOfSlot = tuple[SortOfSlot, tuple[str, int] | None]


@record(slots=False)
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

    def ticks(self, stage: int, place: PlaceOfSlot) -> tuple[int, int]:
        """The ticks of a slot of a stage."""
        (work, chunk, which), before = place
        number = self._numbers[chunk * self.pp + stage]
        ahead = None if before is None else (before[0], self._numbers[before[1] * self.pp + stage])
        key = work, number, which, ahead
        if key not in self._known:
            preceding = ahead and (ahead[0], self.chunks[ahead[1]])
            self._known[key] = self.slot_ticks((work, self.chunks[number], which), preceding)
        return self._known[key]


def schedule_ticks(
    plan: Plan,
    slot_ticks: SlotTicks,
    chunks: Sequence[Chunk],
    links: Sequence[int],
    *,
    framework: str = "",
) -> list[tuple[int, int]]:
    """Lower bounds of the end of each stage's last slot, and of all streams of its last backward
    slots, with messages as a stack with this `framework`'s order has them.

    `slot_ticks` bounds both of a slot, given the slot before it if that has the last micro-batch.
    """
    known, shape = _KnownSlots(plan.pp, chunks, slot_ticks), shape_of(plan)
    messages = messages_of(shape, order_of_messages(framework, plan))
    every = [_of_stage(known, stage, sorts) for stage, sorts in enumerate(sorts_of(shape))]
    both = [(ticks, ticks) for ticks in links]
    times = simulate_schedule(SlotSchedule(messages, [compute for compute, _ in every], both))
    ends = zip(messages.orders, times.stages, every, strict=True)
    return [_ends(order, own, streams) for order, own, (_, streams) in ends]


def _of_stage(known: _KnownSlots, stage: int, sorts: SortsOfStage) -> tuple[Ticks, Ticks]:
    each = np.array([known.ticks(stage, place) for place in sorts.places], dtype=np.int64)
    return each[sorts.which, 0], each[sorts.which, 1]


def _ends(order: Order, times: SlotTimes, streams: Ticks) -> tuple[int, int]:
    """When a stage's slots end, and when all streams of its last backward slots have: norm and
    update wait for the sums of gradients that these begin."""
    last = (order.micro_batch == order.micro_batch.max()) & ~order.is_of(FORWARD)
    over = (times.start + streams)[last].max(initial=0)
    return int(times.end[-1]), int(over)


class SortsOfStage(NamedTuple):
    """The different places of a stage's slots, and which of them each slot has."""

    places: list[PlaceOfSlot]
    which: Indices


@session_cached(64)
def sorts_of(shape: Shape) -> list[SortsOfStage]:
    """The sorts of all stages' slots."""
    found = []
    for stage in range(shape.stages):
        number: dict[PlaceOfSlot, int] = {}
        which, before = list[int](), None
        for slot in order_of(shape, stage):
            sort = _sort(slot, shape.micro_batches)
            which.append(number.setdefault((sort, before), len(number)))
            before = sort[:2] if sort[2] == LAST_ONE else None
        found.append(SortsOfStage(list(number), np.array(which, dtype=np.int64)))
    return found


def _sort(slot: Slot, micro_batches: int) -> SortOfSlot:
    work = "backward" if slot.work == INPUT else slot.work
    if slot.micro_batch == micro_batches - 1:
        return work, slot.chunk, LAST_ONE
    return work, slot.chunk, BETWEEN if slot.micro_batch else FIRST_ONE
