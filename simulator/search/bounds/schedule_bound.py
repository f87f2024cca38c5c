"""A lower bound of a pipeline: its schedule simulated slot by slot, messages included.

Slots have their bounds without contention (`isolated.py`); all micro-batches but the last count as
the first, which adds to no gradients. Interference that slots of the last micro-batch carry into
the next slot is included. Waits between slots and messages are exact; a link takes as long as its
fastest ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.pipeline.schedule_sim import SlotSchedule, simulate_schedule
from simulator.pipeline.steady_rounds import FoldedSchedule, folded_plan, grown
from simulator.search.bounds.isolated import Chunk, PrecedingSlot
from topologies.session import session_cached
from workload.pipeline.message_order import order_of_messages
from workload.pipeline.schedule import Slot, slots
from workload.pipeline.slot import INPUT
from workload.plan import Plan

Orders = tuple[tuple[Slot, ...], ...]
Place = tuple[str, Chunk, bool]  # a work, a chunk, whether it is the last micro-batch's


def schedule_ticks(
    plan: Plan,
    slot_ticks: Callable[[Place, PrecedingSlot | None], int],
    chunks: Sequence[Chunk],
    links: Sequence[int],
    *,
    habit: str = "",
) -> int:
    """A lower bound of the end of the last slot of all stages, with messages as a stack with
    this habit has them.

    `slot_ticks` bounds a slot, given the slot before it if that has the last micro-batch.
    """
    small = folded_plan(plan)
    known: dict[tuple[Place, PrecedingSlot | None], int] = {}

    def stage_ticks(stage: int, order: Sequence[Slot]) -> list[int]:
        before, row = None, []
        for slot in order:
            place = _place(chunks[slot.chunk * plan.pipe + stage], small, slot)
            if (place, before) not in known:
                known[place, before] = slot_ticks(place, before)
            row.append(known[place, before])
            before = place[:2] if place[2] else None
        return row

    while True:
        orders = _orders(small)
        pipe = SlotSchedule(
            orders=orders,
            ticks=[stage_ticks(stage, order) for stage, order in enumerate(orders)],
            links=[(ticks, ticks) for ticks in links],
            messages=order_of_messages(habit, plan),
            micro_batches=small.micro_batches,
        )
        times = simulate_schedule(pipe)
        folded = FoldedSchedule(plan, small, pipe, times)
        if folded.is_steady:
            return max(own.end[-1] for own in times) + folded.shift_ticks
        small = grown(plan, small)


def _place(chunk: Chunk, small: Plan, slot: Slot) -> Place:
    work = "backward" if slot.work == INPUT else slot.work
    return work, chunk, slot.micro_batch == small.micro_batches - 1


def _orders(plan: Plan) -> Orders:
    return _known_orders(plan.schedule, plan.pipe, plan.micro_batches, plan.interleave)


@session_cached(64)
def _known_orders(schedule: str, stages: int, micro_batches: int, chunks: int) -> Orders:
    return tuple(slots(schedule, stage, stages, micro_batches, chunks) for stage in range(stages))
