"""LOMO: SGD in the backward pass, so that no gradient of a weight outlives its update.

A weight's gradient is summed over ranks as soon as it is there, and subtracted from the weight
behind the last op that reads it. Norms, biases and positions, whose gradients are small and summed
together, are updated at the end of the step. No state is kept and in bf16 no master copy; gradients
are not clipped, since their norm would be known only after a second backward pass.

Source: Lv et al., Full Parameter Fine-tuning for Large Language Models with Limited Resources
(2306.09782), section 3.1. Not modelled: the authors' second backward pass for the norm, their loss
scaling, and sums of gradients beside the backward pass.
"""

from __future__ import annotations

from workload.plan_fields import PlanFields
from workload.rules.rule import Update, UpdateRule

KIND = "lomo"
UPDATE = Update("lomo", ())


def refusal(plan: PlanFields) -> str:
    """What a plan has that wants gradients or states which LOMO does not keep."""
    if plan.micro_batches > 1:
        return (
            f"updates weights in the backward pass of a single micro-batch, not of "
            f"{plan.micro_batches}: it keeps no gradients to add to; give mbs="
            f"{plan.micro_batches * plan.mbs}"
        )
    if plan.pp > 1:
        return f"runs with pp=1, not pp={plan.pp}: stages would wait for one micro-batch"
    if plan.zero in (1, 2) and plan.dp * plan.cp > 1:
        return f"keeps no states and gradients for zero={plan.zero} to shard; use zero=0 or 3"
    if plan.training.gradients == "bf16":
        return "keeps no sums of gradients, so gradients=bf16 has no effect; leave it out"
    if plan.training.offload == "optimizer":
        return "keeps no states, so offload=optimizer has nothing to move; leave it out"
    return ""


RULE = UpdateRule(
    name="lomo",
    words="SGD in the backward pass, without sums of gradients",
    source="Lv et al., Full Parameter Fine-tuning with Limited Resources (2306.09782)",
    matrices=UPDATE,
    others=UPDATE,
    refusal=refusal,
    in_backward=True,
)
