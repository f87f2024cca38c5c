"""What a pipeline takes at least when its schedule is played slot by slot, messages included.

Slots are as long as alone, those of all micro-batches but the last as the first one's, which adds
to no gradients; what slots and messages wait for is exact. Links carry each message as fast as
their fastest ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from simulator.pipeline.slots import Pipe, play_slots
from simulator.pipeline.steady import Folded, folded_plan, grown
from simulator.search.bound import Ends
from workload.plan import Plan
from workload.schedule import INPUT, Slot, slots

Orders = tuple[tuple[Slot, ...], ...]


def paced_ticks(
    plan: Plan, slot_ticks: Callable[[str, Ends, bool], int], links: Sequence[int]
) -> int:
    """The end of the last slot of all stages; `slot_ticks` is asked for a work, a chunk's ends, and
    whether it is the last micro-batch's."""
    small = folded_plan(plan)
    known = {
        (work, ends, last): slot_ticks("backward" if work == INPUT else work, ends, last)
        for work in {slot.work for slot in _orders(small)[0]}
        for ends in (Ends(), Ends(first=True), Ends(last=True))
        for last in (False, True)
    }
    while True:
        orders = _orders(small)
        pipe = Pipe(
            orders=orders,
            ticks=[
                [known[_kind(plan, small, stage, slot)] for slot in order]
                for stage, order in enumerate(orders)
            ],
            links=links,
            overlapped="pp" in plan.overlap,
            micro_batches=small.micro_batches,
        )
        times = play_slots(pipe)
        folded = Folded(plan, small, pipe, times)
        if folded.is_steady:
            return max(own.end[-1] for own in times) + folded.shift_ticks
        small = grown(plan, small)


def _kind(plan: Plan, small: Plan, stage: int, slot: Slot) -> tuple[str, Ends, bool]:
    chunk = slot.chunk * plan.pipe + stage
    ends = Ends(first=chunk == 0, last=chunk == plan.pipe * plan.interleave - 1)
    return slot.work, ends, slot.micro_batch == small.micro_batches - 1


def _orders(plan: Plan) -> Orders:
    return _known_orders(plan.schedule, plan.pipe, plan.micro_batches, plan.interleave)


@lru_cache(maxsize=64)
def _known_orders(schedule: str, stages: int, micro_batches: int, chunks: int) -> Orders:
    return tuple(slots(schedule, stage, stages, micro_batches, chunks) for stage in range(stages))
