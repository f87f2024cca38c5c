"""Which values a field of a plan may have, whatever the others are."""

from __future__ import annotations

from typing import Any

from workload.errors import PlanError
from workload.exchange.table import DISPATCHERS
from workload.grid import AXES, check_order
from workload.overlaps import EVERY
from workload.pipeline.schedule import STRAIGHT, TWO_WAY, V_SHAPED
from workload.recipes.table import RECIPE_NAMES
from workload.recomputation.parts import text_refusal
from workload.rules.table import NAMES
from workload.splits.states import MASTERS, MOMENTS

CHOICES = {
    "context_kind": ("ring", "all_gather", "ulysses"),
    "schedule": (*STRAIGHT, *V_SHAPED, *TWO_WAY),
    "attention": ("flash", "unfused"),
    "gradients": ("fp32", "bf16"),
    "moments": tuple(MOMENTS),
    "master": tuple(MASTERS),
    "optimizer": NAMES,
    "offload": ("none", "optimizer", "update", "parameters", "activations"),
    "loss": ("plain", "fused"),
    "matmul_forms": ("plain", "tuned"),
    "precision": ("bf16", "fp32", "fp64"),
    "recipe": RECIPE_NAMES,
    "dispatcher": tuple(DISPATCHERS),
}
MOST = 1_000_000_000  # of every count, so that products of two stay within 64 bits
PRECISIONS = CHOICES["precision"]
OR_RECIPE = f"or for linears alone recipe= with one of {', '.join(RECIPE_NAMES[1:])}"
COUNTS = (
    *(*AXES, "vpp", "batch", "mbs", "ep", "context_heads"),
    *("shard", "etp", "loss_chunks"),
)
# Fields of which some values are wrong whatever the others are, in the order in which one is named.
ALONE = (*COUNTS, *CHOICES, "overlap", "order", "recompute", "zero", "offload_share")


def check_value(key: str, value: Any) -> None:
    """Refuse with a PlanError a value of a field that no plan takes, whatever its other fields."""
    if key in COUNTS:
        least = 0 if key in ("shard", "etp") else 1
        if not least <= value <= MOST:
            bound = f"at least {least}" if value < least else f"at most {MOST:,}"
            raise PlanError(f"{key}={value} must be {bound}")
    elif key in CHOICES:
        _one_of(key, value, CHOICES[key], *([OR_RECIPE] if key == "precision" else []))
    elif key == "overlap":
        for switch in value:
            _one_of(key, switch, EVERY)
    elif key == "order":
        check_order(value)
    elif key == "recompute" and (why := text_refusal(value, MOST)):
        raise PlanError(f"{key}={value} {why}")
    elif key == "offload_share" and not 0 < value <= 1:
        raise PlanError(f"{key}={value:g} must be more than 0 and at most 1")
    elif key == "zero" and value not in range(4):
        raise PlanError(f"{key}={value} must be 0, 1, 2 or 3")


def _one_of(key: str, value: str, allowed: tuple[str, ...], *further: str) -> None:
    if value not in allowed:
        known = ", ".join((*allowed, *further))
        raise PlanError(f"{key}={value} is not supported; use one of {known}")
