"""a2a in pipelines: the forward and the backward pass of a pair of slots run in turns.

Both go as far as their next all-to-all, which then runs beside the other's compute, as without a
pipeline (`other_micro_batch.py`). It is the last pass of all, over slots that are otherwise as they
are alone: so what a slot does, holds and costs alone is known from the plain program.
Sources: NVIDIA/Megatron-LM, core/pipeline_parallel/combined_1f1b.py and
core/models/common/model_chunk_schedule_plan.py; DeepSeek-V3 (2412.19437), section 3.2.1, figure 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workload.op import Block, Op
from workload.passes.exchanges.other_micro_batch import in_turns, stretches
from workload.pipeline.pairs import Pairs, is_between_slots
from workload.pipeline.slot import Slot


def in_pairs(
    ops: Sequence[Op], slot_of: Mapping[Block, Slot], order: Sequence[Slot], pairs: Pairs
) -> tuple[Op, ...]:
    """A stage's ops with those of each pair of slots in turns; nothing stands between the slots of
    a pair."""
    places: dict[Slot, list[int]] = {order[place]: [] for pair in pairs for place in pair}
    for at, op in enumerate(ops):
        slot = slot_of.get(op.block)
        if slot in places and not is_between_slots(op):
            places[slot].append(at)
    result = list(ops)
    for pair in pairs:
        slots = [places[order[place]] for place in pair]
        own = [at for slot in slots for at in slot]
        turns = in_turns_of([[ops[at] for at in slot] for slot in slots])
        for at, op in zip(own, turns, strict=True):
            result[at] = op
    return tuple(result)


def in_turns_of(slots: Sequence[Sequence[Op]]) -> list[Op]:
    """The ops of a forward slot and of the backward slot beside it, or of its two halves, whose
    gradients of weights then stand behind the next all-to-all."""
    forward, back, *weights = slots
    later = [op for each in weights for op in each]
    return in_turns(stretches(back, later), stretches(forward))
