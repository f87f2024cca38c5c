"""Which ranks hold different experts: neighbours on context and then on data, perhaps on x too.

The tokens of ranks of context are further tokens to the experts, so these can be folded over
context as over data, and gradients of experts are summed over the ranks that hold the same alone.
Source: Megatron-Core's parallel folding (2504.14960), section 3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workload.errors import PlanCannotRunError, PlanError
from workload.grid import axes_of
from workload.passes.exchanges.pairs import exchanges_refusal

if TYPE_CHECKING:
    from workload.plan import Plan

Axes = tuple[str, ...]
MOST_RANKS = 4096  # of which nearest ones are looked for


def folded(experts: int, context: int) -> tuple[int, int]:
    """Over how many neighbours on context, and over how many on data, so many ranks hold different
    experts: over context first, and over data where there are more of them.

    Source: Megatron-Core, parallel_state.py, whose grid of experts has no context, so that theirs
    are neighbours on context and data; torchtitan, parallel_dims.py.

    >>> folded(2, 4), folded(8, 4), folded(8, 1)
    ((2, 1), (4, 2), (1, 8))
    """
    on_context = experts if context % experts == 0 else context
    return on_context, experts // on_context


def folds(plan: Plan) -> tuple[int, int]:
    """Over how many neighbours on context, and on data, a plan splits experts."""
    return folded(max(plan.expert // (plan.x if plan.experts_over_x else 1), 1), plan.context)


def axes_of_experts(plan: Plan) -> Axes:
    """See `Plan.expert_axes`."""
    if plan.expert == 1:
        return ()
    of = {"data": "expert"} | ({"x": "x"} if plan.experts_over_x else {})
    if plan.context > 1:
        on_context, on_data = folds(plan)
        if on_context > 1:
            of["context"] = "context" if on_context == plan.context else "inner_context"
        of = {axis: part for axis, part in of.items() if axis != "data" or on_data > 1}
    return tuple(of[axis] for axis in axes_of(plan.order) if axis in of)


def axes_of_copies(plan: Plan) -> Axes:
    """See `Plan.expert_copies`."""
    on_context, _ = folds(plan)
    if on_context == plan.context:
        return ("expert_copies",)
    return ("outer_context" if on_context > 1 else "context", "expert_copies")


def run_of_data(plan: Plan) -> int:
    """How many neighbours on data hold different experts, as `Grid` has it: 0 without experts."""
    return folds(plan)[1] if plan.expert > 1 else 0


def run_of_context(plan: Plan) -> int:
    """How many neighbours on context hold different experts, where they are a part of it; else
    0."""
    on_context = folds(plan)[0] if plan.expert > 1 else 1
    return on_context if 1 < on_context < plan.context else 0


def check(plan: Plan) -> None:
    """Refuse what splits experts in no way that there is, or makes no sense beside the rest."""
    if plan.expert_tensor not in (0, 1, plan.x):
        raise PlanError(f"expert_tensor={plan.expert_tensor} must be 1, or as x={plan.x}")
    if plan.expert_tensor == 1 and plan.x > 1 and plan.expert == 1:
        raise PlanError(
            f"expert_tensor=1 splits experts over x={plan.x} too, and expert=1 splits none; "
            f"give expert={plan.x} or a multiple of it, or leave expert_tensor out"
        )
    over_x = plan.x if plan.experts_over_x else 1
    on_context, on_data = folds(plan)
    left = (plan.expert // over_x) % on_context or plan.data % max(on_data, 1)
    if plan.expert % over_x or left:
        split = plan.context > 1
        raise PlanCannotRunError(
            f"expert={plan.expert} does not divide data={plan.data}"
            + (f" times context={plan.context}" if split else "")
            + (f" times x={plan.x}, or is no multiple of x" if over_x > 1 else "")
            + (", or neither divides context nor is a multiple of it" if split else "")
            + f"; nearest: {_nearest(plan, over_x)}"
        )
    if over_x > 1 and not plan.sequence_parallel:
        raise PlanError("expert_tensor=1 with x > 1 needs sequence_parallel")
    if plan.expert > 1 and plan.shard:
        raise PlanError(f"expert={plan.expert} does not go with shard={plan.shard} yet")
    if why := exchanges_refusal(plan):
        raise PlanError(why)


def _nearest(plan: Plan, over_x: int) -> str:
    """The next numbers of ranks below and above the plan's that can hold different experts."""
    whole = [plan.context * each for each in _divisors(plan.data)]
    each = [over_x * inside for inside in sorted({*_divisors(plan.context), *whole})]
    near = [e for e in each if e < plan.expert][-1:] + [e for e in each if e > plan.expert][:1]
    return ", ".join(map(str, near))


def _divisors(count: int) -> list[int]:
    return [each for each in range(1, min(count, MOST_RANKS) + 1) if count % each == 0]
