"""Dispatchers: by which messages rows of tokens get to the ranks of their experts, and back.

All of them are all-to-alls of the same groups. They differ in how rows go, which is the library's
or the machine's to time, and in whether a row goes once for several experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workload.errors import PlanCannotRunError
from workload.op import STEPS

if TYPE_CHECKING:
    from workload.plan import Plan

USUAL, ALL_TO_ALL, HIERARCHICAL, ONCE = (
    "usual", "all_to_all", "hierarchical", "once_per_node",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """One dispatcher; one that is not `run` is predicted alone."""

    name: str
    words: str
    source: str
    run: bool = False


DISPATCHERS = (
    Dispatcher(
        name=USUAL,
        words="as the stack has it: a row for each expert of a token, if it says nothing",
        source="simulator/stacks, kernels.exchange",
        run=True,
    ),
    Dispatcher(
        name=ALL_TO_ALL,
        words="a row for each expert of a token, straight to its rank",
        source="Megatron-Core, MoEAlltoAllTokenDispatcher",
        run=True,
    ),
    Dispatcher(
        name=HIERARCHICAL,
        words="the same rows, first inside each node, then across nodes",
        source="Tutel (2206.03382), 2DH; DeepSpeed-MoE (2201.05596), hierarchical all-to-all",
    ),
    Dispatcher(
        name=ONCE,
        words="a token once to each node with experts of it, and copied there",
        source="DeepSeek-V3 (2412.19437), section 3.2.2; X-MoE (2508.13337)",
    ),
)
_BY_NAME = {each.name: each for each in DISPATCHERS}
DISPATCHER_NAMES = tuple(_BY_NAME)


def dispatcher_refusal(plan: Plan) -> str:
    """Why a plan cannot have its dispatcher; "" where it can."""
    if plan.dispatcher != USUAL and plan.expert == 1:
        return "has no rows to send: with expert=1 every rank has all experts"
    return ""


def how_of(plan: Plan) -> dict[str, Any]:
    """What the all-to-alls of a plan's rows must know beyond their operands."""
    return {STEPS: 2} if plan.dispatcher == HIERARCHICAL else {}


def check_dispatched(plan: Plan) -> None:
    """Refuse to run what is only predicted."""
    if not _BY_NAME[plan.dispatcher].run:
        raise PlanCannotRunError(
            f"dispatcher={plan.dispatcher} is predicted alone: simgpt runs all-to-alls of torch, "
            "which send each row straight to its rank; leave it out"
        )
