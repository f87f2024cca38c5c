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
from workload.plan_fields import PlanFields

IN_V = ("dualpipe-v", "dualpipe")  # schedules of pairs besides 1F1B
WHOLE = ("1f1b", "gpipe")  # those whose backward passes are not split


def exchanges_refusal(plan: PlanFields) -> str:
    """Why all-to-alls cannot run beside what a plan's `overlap` names; "" where they can."""
    chunks = plan.schedule == "1f1b" and (plan.pp == 1) == (plan.vpp == 1)
    if "a2a" in plan.overlap and (plan.ep == 1 or not (chunks or plan.schedule in IN_V)):
        return (
            "overlap=a2a lets two micro-batches of one stage take turns at experts' all-to-alls: "
            "it needs ep > 1 and schedule=1f1b, with vpp > 1 if pp > 1, or "
            f"schedule=dualpipe-v or dualpipe, not ep={plan.ep}, pp={plan.pp}, "
            f"vpp={plan.vpp} and schedule={plan.schedule}"
        )
    if "wgrad" in plan.overlap and (plan.ep == 1 or plan.schedule not in WHOLE):
        return (
            "overlap=wgrad puts gradients of weights off until the next all-to-all of experts: it "
            "needs ep > 1 and backward passes that are not split, "
            f"schedule={' or '.join(WHOLE)}, not ep={plan.ep} and schedule={plan.schedule}"
        )
    return ""


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
