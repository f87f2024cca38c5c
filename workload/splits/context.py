"""How ranks of context share the attention core: runs of neighbours, and what is refused."""

from __future__ import annotations

from workload.errors import PlanCannotRunError, PlanError
from workload.plan_fields import PlanFields
from workload.recipes.table import FP8, NO_RECIPE
from workload.splits import experts

LONG = (
    8192  # tokens, from which on context pays: NVIDIA, Parallelism Strategies Guide, "8K+ tokens"
)


def runs_of(plan: PlanFields) -> tuple[int, ...]:
    """The runs of neighbours on context that do something of their own, as `Grid` has them: share
    experts, hold different ones, or trade rows for heads; none where all do."""
    own = experts.runs_of_context(plan)
    return own or ((plan.context.heads,) if plan.context.heads > 1 else ())


def check(plan: PlanFields) -> None:
    """Refuse a core that cannot be shared so."""
    if plan.cp > 1 and plan.training.attention == "unfused":
        raise PlanCannotRunError(
            f"cp={plan.cp} needs attention=flash: single steps have whole squares"
        )
    if plan.context.latents:
        _check_latents(plan)
    if plan.context.heads == 1:
        return
    said = f"context_heads={plan.context.heads}"
    if plan.context.kind != "ring":
        raise PlanError(
            f"{said} trades heads before keys go around a ring: it needs context_kind=ring, not "
            f"{plan.context.kind}"
        )
    if plan.cp % plan.context.heads or plan.cp == plan.context.heads:
        raise PlanCannotRunError(
            f"{said} must divide cp={plan.cp} and be less; context_kind=ulysses trades "
            "heads over all of it"
        )
    runs = experts.runs_of_context(plan)
    if runs not in ((), (plan.context.heads,)):
        lengths = " and ".join(map(str, runs))
        raise PlanCannotRunError(
            f"ep={plan.ep} splits cp={plan.cp} into runs of {lengths} "
            f"neighbours, and {said} into others; make them alike"
        )


def _check_latents(plan: PlanFields) -> None:
    """Refuse what does not go with gathering the numbers that keys and values are compressed to."""
    said = "context_latents=true"
    if plan.cp == 1 or plan.context.kind != "all_gather":
        raise PlanCannotRunError(
            f"{said} says what ranks of context gather: it needs context above 1 and "
            "context_kind=all_gather"
        )
    if plan.training.recompute.partition(":")[0] not in ("none", "full"):
        raise PlanCannotRunError(
            f"{said} leads up once more in the backward pass by itself, and can be combined with "
            f"recompute=none or full, not {plan.training.recompute}"
        )
    if plan.training.recipe not in (NO_RECIPE, FP8):
        raise PlanCannotRunError(f"{said} cannot be combined with recipe={plan.training.recipe}")
