"""What rules that compare losses have in common: names, and what they refuse."""

from __future__ import annotations

from workload.plan_fields import PlanFields

LOSSES = ("loss", "loss.against")  # of the pass along the direction, and of that against it
SLOPES = "slopes"  # of each replica the projected gradient and the loss
UPDATE = "zeroth_order_update"


def refusal(plan: PlanFields) -> str:
    """What a plan has that wants gradients, states or a backward pass."""
    if plan.zero in (1, 2) and plan.dp > 1:
        return f"keeps no states and gradients for zero={plan.zero} to shard; use zero=0 or 3"
    if plan.training.gradients == "bf16":
        return "sums no gradients, so gradients=bf16 has no effect; use fp32"
    if plan.training.offload == "optimizer":
        return "keeps no states, so offload=optimizer has nothing to move; leave it out"
    if plan.training.recompute != "none":
        return (
            f"has no backward pass, so recompute={plan.training.recompute} has no effect; use none"
        )
    if plan.pipeline.schedule != "1f1b":
        schedule = plan.pipeline.schedule
        return f"runs forward passes alone, which schedule={schedule} orders as 1f1b does"
    if not plan.reshard:
        return "has no backward pass to keep gathered weights for, as reshard=false would; use true"
    return ""
