"""SGD, plain and with momentum; decay is added to the gradient, as torch.optim.SGD does.

The momentum is that of most published runs, 0.9.
"""

from __future__ import annotations

from workload.plan_fields import PlanFields
from workload.rules.rule import Update, UpdateRule

MOMENTUM = 0.9  # Sutskever et al., On the importance of initialization and momentum (ICML 2013)
STATES = ("momentum",)


def refusal(plan: PlanFields) -> str:
    """Plain SGD keeps nothing but, in bf16, a master copy."""
    if plan.training.offload == "optimizer" and plan.training.precision != "bf16":
        return (
            f"keeps no states in precision={plan.training.precision}, so offload=optimizer has "
            "nothing to "
            "move; leave it out"
        )
    return ""


PLAIN, HEAVY = Update("sgd", ()), Update("sgd-momentum", STATES)
SOURCE = "pytorch/pytorch, torch/optim/sgd.py"
RULE = UpdateRule("sgd", "the gradient alone", SOURCE, PLAIN, PLAIN, refusal)
WITH_MOMENTUM = UpdateRule("sgd-momentum", "a running sum of gradients", SOURCE, HEAVY, HEAVY)
