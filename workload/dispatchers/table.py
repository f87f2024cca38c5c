"""Dispatchers: how rows of tokens get to places of their experts, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workload.gpt import GPT
    from workload.plan import Plan

USUAL, SPARSE, DENSE = "usual", "sparse", "dense"


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """One dispatcher; one `with_places` alone needs a model whose experts have a capacity."""

    name: str
    words: str
    source: str
    with_places: bool = False


DISPATCHERS = (
    Dispatcher(
        name=USUAL,
        words="rows are copied to their places by number, and sent as the stack sends them",
        source="Megatron-Core, MoEAlltoAllTokenDispatcher",
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


def model_refusal(gpt: GPT, plan: Plan) -> str:
    """Why a plan's dispatcher cannot be that of a model; "" where it can."""
    if plan.dispatcher == USUAL:
        return ""
    if not gpt.experts:
        return f"sends rows to experts, and {gpt.name} has none; leave it out"
    if _BY_NAME[plan.dispatcher].with_places and not gpt.capacity:
        return (
            f"has so many places for each expert, and {gpt.name} drops no token (capacity=0); "
            "give the model a capacity, or leave it out"
        )
    if gpt.biases:
        return f"weighs what returns, and knows no biases of experts ({gpt.name} has biases=true)"
    return ""
