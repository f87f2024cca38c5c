"""Updates of AdamW, SGD and, at the end of a step, LOMO: element by element."""

from __future__ import annotations

from collections.abc import Sequence

from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.lowering.updates.elementwise import elementwise
from workload.op import Part
from workload.rules import adamw, lomo, sgd


def emit_adamw(
    b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]
) -> None:
    """Emit the update of an owner's parameters by their moments."""
    elementwise(b, "adamw", owner, parameters, grads, adamw.STATES)


def emit_sgd(
    b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]
) -> None:
    """Emit w -= lr (g + decay w)."""
    elementwise(b, "sgd", owner, parameters, grads, (), momentum=0.0)


def emit_sgd_with_momentum(
    b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]
) -> None:
    """Emit u = momentum u + g + decay w, then w -= lr u."""
    elementwise(b, "sgd", owner, parameters, grads, sgd.STATES, momentum=sgd.MOMENTUM)


def emit_lomo(
    b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]
) -> None:
    """Emit w -= lr (g + decay w) for what LOMO updates at the end."""
    elementwise(b, lomo.KIND, owner, parameters, grads, ())


def emit_in_backward(
    b: Builder, label: str, parameter: str, grad: str, purpose: str, *, first: bool
) -> None:
    """Emit the sum of a weight's gradient over the copies of the weight, and its update; a table
    that serves twice decays with its `first` gradient of the step."""
    copies = b.sharding.copies
    b.all_reduce(f"{label}.grad.reduce", grad, *copies)
    p = b.parameters[parameter]
    b.op(
        f"{label}.grad.update",
        lomo.KIND,
        [grad, parameter],
        [parameter],
        purpose=purpose,
        parameters=(parameter,),
        decays=(p.decays and first,),
        copied=(False,),
    )
