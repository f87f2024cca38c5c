"""Dispatchers: how rows of tokens get to places of their experts, and back.

All but one send by all-to-alls of the same groups. Some differ in how rows go, by which ranks share
a node, which a program does not know (`executor/exchanges`), and in whether a row goes once for
several experts of a token; others in what a rank does to bring rows to padded places, with which a
model's capacity goes. One gathers the tokens of all ranks in place of sending rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topologies.records import record
from workload.op import STEPS
from workload.plan_fields import PlanFields
from workload.recipes.table import NO_RECIPE, RECIPES, recipe_of

if TYPE_CHECKING:
    from workload.gpt import GPT

USUAL, ALL_TO_ALL, HIERARCHICAL, ONCE, ALL_GATHER, SPARSE, DENSE = (
    "usual", "all_to_all", "hierarchical", "once_per_node", "all_gather", "sparse", "dense",
)  # fmt: skip


@record
class Dispatcher:
    """One dispatcher; one `with_places` needs a model whose experts have a capacity."""

    name: str
    words: str
    source: str
    with_places: bool = False


DISPATCHERS = (
    Dispatcher(
        name=USUAL,
        words="rows are copied to their places by number, and sent as the stack sends them: a row "
        "for each expert of a token, if it says nothing",
        source="simulator/stacks, kernels.exchange; Megatron-Core, MoEAlltoAllTokenDispatcher",
    ),
    Dispatcher(
        name=ALL_TO_ALL,
        words="a row for each expert of a token, straight to its rank",
        source="Megatron-Core, MoEAlltoAllTokenDispatcher",
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
    Dispatcher(
        name=ALL_GATHER,
        words="tokens of all ranks gathered, of which each takes the rows of its own experts; sums "
        "of outputs scattered back",
        source="Megatron-Core, MoEAllGatherTokenDispatcher",
    ),
    Dispatcher(
        name=SPARSE,
        words="rows are copied to padded places by number, and weighed when they are back",
        source="Tutel (2206.03382), section 4.2; tutel/impls/fast_dispatch.py",
        with_places=True,
    ),
    Dispatcher(
        name=DENSE,
        words="products with masks of tokens x experts x places, which padded rows leave and reach",
        source="GShard (2006.16668), algorithm 2; DeepSpeed-MoE, deepspeed/moe/sharded_moe.py",
        with_places=True,
    ),
)
_BY_NAME = {each.name: each for each in DISPATCHERS}
DISPATCHER_NAMES = tuple(_BY_NAME)
WITH_PLACES = tuple(each.name for each in DISPATCHERS if each.with_places)
WITHOUT_BOUNDS = WITH_PLACES  # whose ops are others than those that a search bounds


def dispatcher_refusal(plan: PlanFields) -> str:
    """Why a plan cannot have its dispatcher; "" where it can."""
    if plan.dispatcher not in (USUAL, *WITH_PLACES) and plan.ep == 1:
        return "has no rows to send: with ep=1 every rank has all experts"
    return ""


def fp8_refusal(plan: PlanFields) -> str:
    """Why a plan cannot send rows in 8 bits; "" where it can, or does not."""
    if not plan.fp8_dispatch:
        return ""
    if plan.ep == 1:
        return "has no rows to send: with ep=1 every rank has all experts"
    if plan.dispatcher in (ALL_GATHER, *WITH_PLACES):
        return (
            f"needs a dispatcher that sends rows by number, not dispatcher={plan.dispatcher}: "
            f"{USUAL}, {ALL_TO_ALL}, {HIERARCHICAL} or {ONCE}"
        )
    return recipe_refusal(plan.recipe)


def recipe_refusal(recipe: str) -> str:
    """Why rows cannot be sent in 8 bits with a recipe; "" where they can."""
    if recipe != NO_RECIPE and recipe_of(recipe).sends_rows:
        return ""
    known = " or ".join(each.name for each in RECIPES if each.sends_rows)
    return f"sends rows with their scales of blocks of columns, so it needs recipe={known}"


def model_refusal(gpt: GPT, plan: PlanFields) -> str:
    """Why a plan's dispatcher cannot be that of a model; "" where it can."""
    if plan.dispatcher == USUAL:
        return ""
    if not gpt.experts:
        return f"sends rows to experts, and {gpt.name} has none; leave it out"
    if plan.dispatcher not in WITH_PLACES:
        return ""
    if not gpt.capacity:
        return (
            f"has so many places for each expert, and {gpt.name} drops no token (capacity=0); "
            "give the model a capacity, or leave it out"
        )
    if gpt.biases:
        return f"weighs what returns, and knows no biases of experts ({gpt.name} has biases=true)"
    return ""


def how_of(plan: PlanFields) -> dict[str, Any]:
    """What the all-to-alls of a plan's rows must know beyond their operands."""
    return {STEPS: 2} if plan.dispatcher == HIERARCHICAL else {}
