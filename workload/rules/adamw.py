"""AdamW: two moments of each gradient, decay apart from them."""

from __future__ import annotations

from workload.rules.rule import Update, UpdateRule

STATES = ("m", "v")
UPDATE = Update("adamw", STATES)
RULE = UpdateRule(
    name="adamw",
    words="two moments of each gradient, decoupled decay",
    source="Loshchilov and Hutter, Decoupled Weight Decay Regularization (1711.05101)",
    matrices=UPDATE,
    others=UPDATE,
)
