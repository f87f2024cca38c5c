"""SGD, plain and with momentum; decay is added to the gradient, as torch.optim.SGD does.

The momentum is that of most published runs, 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workload.op import Part
from workload.rules.elementwise import elementwise
from workload.rules.rule import Update, UpdateRule

if TYPE_CHECKING:
    from workload.lowering.builder import Builder
    from workload.lowering.parameter import Parameter
    from workload.plan import Plan

MOMENTUM = 0.9  # Sutskever et al., On the importance of initialization and momentum (ICML 2013)


def emit(b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]) -> None:
    """Emit w -= lr (g + decay w)."""
    elementwise(b, "sgd", owner, parameters, grads, (), momentum=0.0)


def emit_with_momentum(
    b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]
) -> None:
    """Emit u = momentum u + g + decay w, then w -= lr u."""
    elementwise(b, "sgd", owner, parameters, grads, ("momentum",), momentum=MOMENTUM)


def refusal(plan: Plan) -> str:
    """Plain SGD keeps nothing but, in bf16, a master copy."""
    if plan.offload == "optimizer" and plan.precision != "bf16":
        return (
            f"keeps no states in precision={plan.precision}, so offload=optimizer has nothing to "
            "move; leave it out"
        )
    return ""


PLAIN, HEAVY = Update((), emit), Update(("momentum",), emit_with_momentum)
SOURCE = "pytorch/pytorch, torch/optim/sgd.py"
RULE = UpdateRule("sgd", "the gradient alone", SOURCE, PLAIN, PLAIN, refusal)
WITH_MOMENTUM = UpdateRule("sgd-momentum", "a running sum of gradients", SOURCE, HEAVY, HEAVY)
