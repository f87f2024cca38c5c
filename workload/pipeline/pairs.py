"""Which slots of a stage run as a pair: a forward pass and a backward pass in turns.

1F1B over virtual stages pairs each forward pass between warm-up and end with the backward pass
behind it. Its warm-up is one forward pass longer, so that neither waits for what the other makes.
Source: NVIDIA/Megatron-LM, core/pipeline_parallel/schedules.py, get_pp_rank_microbatches.

DualPipeV pairs a forward pass through one chunk with the whole backward pass through the other one
right behind it, but for the last stage's first two; DualPipe too, but for those of the two stages
in the middle. Source: deepseek-ai/DualPipe, steps 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from workload.op import NONE, Op
from workload.pipeline.slot import BACKWARD, FORWARD, INPUT, WEIGHT, Slot
from workload.pipeline.warm_up import warm_up

Pairs = list[range]  # of places in a stage's order; the forward pass is the first of them


def pairs_of(order: Sequence[Slot], stage: int, stages: int, *, in_v: bool) -> Pairs:
    """The places of each pair of a stage, in their order."""
    if in_v:
        turns = order[0].chunk != order[1].chunk  # where micro-batches turn, or change halves
        return list(_in_v(order))[turns:]
    chunks = 1 + max(slot.chunk for slot in order)
    ahead = warm_up(stage, stages, len(order) // (2 * chunks), chunks, more=1)
    return [range(at, at + 2) for at in range(ahead, len(order) - ahead, 2) if _meet(order, at)]


def _meet(order: Sequence[Slot], at: int) -> bool:
    return [slot.work for slot in order[at : at + 2]] == [FORWARD, BACKWARD]


def _in_v(order: Sequence[Slot]) -> Iterator[range]:
    for at in range(len(order) - 2):
        forward, back, weight = order[at : at + 3]
        whole = back.work == INPUT and weight == replace(back, work=WEIGHT)
        if forward.work == FORWARD and whole and forward.chunk != back.chunk:
            yield range(at, at + 3)


def is_between_slots(op: Op) -> bool:
    """Whether an op stands between slots: a message, or a wait for one."""
    return op.is_message or (op.kind == "fence" and op.block.chunk != NONE)


def units_of(places: int, pairs: Pairs) -> list[range]:
    """All places in a row, those of a pair together.

    >>> units_of(4, [range(1, 3)])
    [range(0, 1), range(1, 3), range(3, 4)]
    """
    whole = {pair.start: pair for pair in pairs}
    inside = {place for pair in pairs for place in pair[1:]}
    singles = {place: range(place, place + 1) for place in range(places)}
    return [whole.get(at, single) for at, single in singles.items() if at not in inside]
