"""AdamW: two moments of each gradient, decay apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workload.op import Part
from workload.rules.elementwise import elementwise
from workload.rules.rule import Update, UpdateRule

if TYPE_CHECKING:
    from workload.lowering.builder import Builder
    from workload.lowering.parameter import Parameter

STATES = ("m", "v")


def emit(b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]) -> None:
    """Emit the update of an owner's parameters."""
    elementwise(b, "adamw", owner, parameters, grads, STATES)


UPDATE = Update(STATES, emit)
RULE = UpdateRule(
    name="adamw",
    words="two moments of each gradient, decoupled decay",
    source="Loshchilov and Hutter, Decoupled Weight Decay Regularization (1711.05101)",
    matrices=UPDATE,
    others=UPDATE,
)
