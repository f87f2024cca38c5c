"""Whether a plan divides a model."""

from __future__ import annotations

from collections.abc import Iterable

from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.pipeline.stages import chunk_layers
from workload.plan import Plan
from workload.rules.table import rule_of


def check(gpt: GPT, plan: Plan) -> None:
    """Refuse a plan that does not divide the model, naming what would, or cannot have its loss."""
    x, y = plan.x, plan.y
    chunk_layers(gpt, plan)
    groups = {"kv_heads": gpt.kv_heads} if gpt.kv_heads else {}
    _divides("x", x, {"heads": gpt.heads, **groups, "ffn": gpt.ffn})
    _divides("y", y, {"hidden": gpt.hidden})
    if plan.context > 1:
        _divides("2*context", 2 * plan.context, {"sequence": gpt.sequence})
    if plan.context > 1 and plan.context_kind == "ulysses":
        _divides("x*context", x * plan.context, {"heads": gpt.heads, **groups})
    if plan.sequence_parallel:
        rows = plan.micro_batch * gpt.sequence // plan.context
        _divides("x", x, {"the rows of a micro-batch": rows})
    if gpt.goldfish_k and rule_of(plan.optimizer).in_backward:
        raise PlanCannotRunError(
            f"optimizer={plan.optimizer} updates weights in the backward pass, before it is known "
            "how many tokens Goldfish loss keeps; leave goldfish_k out or take another rule"
        )


def _divides(axis: str, size: int, widths: dict[str, int]) -> None:
    whole = [f"{name}={width}" for name, width in widths.items() if width % size]
    if whole:
        raise PlanCannotRunError(
            f"{axis}={size} does not divide {' and '.join(whole)}; "
            f"nearest: {_nearest(size, list(widths.values()))}"
        )


def _nearest(size: int, widths: list[int]) -> str:
    def fits(candidate: int) -> bool:
        return all(width % candidate == 0 for width in widths)

    below = next((c for c in range(size - 1, 0, -1) if fits(c)), 0)
    above: Iterable[int] = range(size + 1, min(widths) + 1)
    nearest = [below, next((c for c in above if fits(c)), 0)]
    return ", ".join(str(candidate) for candidate in nearest if candidate)
