"""The exchanges of experts' rows, one row each, below the plan: its checks read them.

A plan names one as its `dispatcher`; which one is usual is said by the stack (`kernels.exchange` of
its file). Who emits, prices, bounds, runs, reads or writes an exchange asks for its row: how a
rank moves rows to places of experts, what it sends of a token, who sends, at which rate, and
whether kernels of the stack's own may do it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

from topologies.records import record
from workload.model.fields import ModelFields
from workload.op import STEPS
from workload.plan_fields import PlanFields
from workload.recipes.table import NO_RECIPE, RECIPES, recipe_of

USUAL = "usual"


class Moves(Enum):
    """How rows of tokens get to places of experts, and back."""

    BY_NUMBER = "copied by number, and sent with their scores"
    GATHERED = "tokens of all ranks gathered, of which each takes the rows of its own experts"
    WEIGHED = "copied by number to padded places, and weighed when they are back"
    BY_MASKS = "products with masks of tokens x experts x places"


class Copies(Enum):
    """How many rows of a token are sent."""

    OF_EXPERTS = "one for each of its experts"
    OF_NODES = "one for each node with experts of it or, in a group within a node, for each rank"
    OF_RANKS = "one for each rank with experts of it"

    def parts(self, ranks: int, nodes: int) -> int:
        """To how many parts of a group, of so many ranks on so many nodes, a row goes once each."""
        return ranks if nodes == 1 or self is Copies.OF_RANKS else nodes


class Sender(Enum):
    """Which rows a rank sends, where others have the same tokens."""

    EVERY_ROW = "all that it has"
    OWN_ROWS = "those of its own part of a sequence, where it shares experts with other ranks of x"


class Rate(Enum):
    """Rate class of its all-to-alls (`workload/transport.py`)."""

    LIBRARY = "the library's"
    IN_STEPS = "inside nodes first, then across them"


@record
class Exchange:
    """One way for rows to reach the ranks of their experts. Where `kernels` may send its rows, a
    stack can have rates of its own for it. `in_stacks` is its name in their files, `megatron` has
    its names in Megatron-Core: the dispatcher's type and, behind a colon, its backend, which
    `only_in` has if it is not NVIDIA's."""

    name: str
    words: str
    source: str
    moves: Moves = Moves.BY_NUMBER
    copies: Copies = Copies.OF_EXPERTS
    sender: Sender = Sender.EVERY_ROW
    rate: Rate = Rate.LIBRARY
    kernels: bool = False
    in_stacks: str = ""
    in_plans: bool = True
    megatron: tuple[str, ...] = ()
    only_in: str = ""

    @property
    def dispatcher(self) -> str:
        """The dispatcher of a plan that asks for it."""
        return self.name if self.in_plans else ALL_TO_ALL.name

    @property
    def with_places(self) -> bool:
        """Whether it needs a model whose experts have a capacity. A search does not try those."""
        return self.moves in (Moves.WEIGHED, Moves.BY_MASKS)

    @property
    def needs_ranks(self) -> bool:
        """Whether a plan cannot ask for it unless other ranks have experts."""
        return self.name != USUAL and not self.with_places

    @property
    def by_number(self) -> bool:
        """Whether rows are sent by number: those alone can be in 8 bits, and have lower bounds."""
        return self.moves is Moves.BY_NUMBER

    @property
    def once(self) -> bool:
        """Whether a token's row goes once to several of its experts."""
        return self.copies is not Copies.OF_EXPERTS

    @property
    def own_rows(self) -> bool:
        """Whether ranks of x send their own rows alone."""
        return self.sender is Sender.OWN_ROWS

    @property
    def in_steps(self) -> bool:
        """Whether its all-to-alls go inside nodes first."""
        return self.rate is Rate.IN_STEPS

    @property
    def attributes(self) -> dict[str, Any]:
        """What its all-to-alls must know beyond their operands."""
        if self.in_steps:
            return {STEPS: 2}
        return {STEPS: 1} if self.copies is Copies.OF_RANKS else {}


ALL_TO_ALL = Exchange(
    name="all_to_all",
    words="a row for each expert of a token, straight to its rank",
    source="Megatron-Core, MoEAlltoAllTokenDispatcher",
    in_stacks="each",
    megatron=("alltoall",),
)
EXCHANGES = (
    Exchange(
        name=USUAL,
        words="rows are copied to their places by number, and sent as the stack sends them: a row "
        "for each expert of a token, if it says nothing",
        source="simulator/stacks, kernels.exchange; Megatron-Core, MoEAlltoAllTokenDispatcher",
    ),
    ALL_TO_ALL,
    Exchange(
        name="hierarchical",
        words="the same rows, first inside each node, then across nodes",
        source="Tutel (2206.03382), 2DH; DeepSpeed-MoE (2201.05596), hierarchical all-to-all",
        rate=Rate.IN_STEPS,
    ),
    Exchange(
        name="once_per_node",
        words="a token once to each node with experts of it, and copied there",
        source="DeepSeek-V3 (2412.19437), section 3.2.2; X-MoE (2508.13337)",
        copies=Copies.OF_NODES,
        kernels=True,
        in_stacks="once",
        megatron=("flex:deepep", "flex:hybridep"),
    ),
    Exchange(
        name="once_per_rank",
        words="a token once to each rank with experts of it, and copied there",
        source="ROCm/mori, src/ops/dispatch_combine/internode.hpp, EpDispatchInterNodeKernel; "
        "ROCm/Megatron-LM, pull request 135 (--moe-flex-dispatcher-backend mori)",
        copies=Copies.OF_RANKS,
        megatron=("flex:mori",),
        only_in="ROCm's fork of Megatron-LM, for AMD GPUs",
    ),
    Exchange(
        name="own_rows",
        words="a row for each expert of a token, of the tokens of a rank's own part of a sequence",
        source="NVIDIA/Megatron-LM core_v0.12.0, megatron/core/transformer/moe/token_dispatcher.py",
        sender=Sender.OWN_ROWS,
        in_stacks="own",
        in_plans=False,
    ),
    Exchange(
        name="all_gather",
        words="tokens of all ranks gathered, of which each takes the rows of its own experts; sums "
        "of outputs scattered back",
        source="Megatron-Core, MoEAllGatherTokenDispatcher",
        moves=Moves.GATHERED,
        megatron=("allgather",),
    ),
    Exchange(
        name="sparse",
        words="rows are copied to padded places by number, and weighed when they are back",
        source="Tutel (2206.03382), section 4.2; tutel/impls/fast_dispatch.py",
        moves=Moves.WEIGHED,
    ),
    Exchange(
        name="dense",
        words="products with masks of tokens x experts x places, which padded rows leave and reach",
        source="GShard (2006.16668), algorithm 2; DeepSpeed-MoE, deepspeed/moe/sharded_moe.py",
        moves=Moves.BY_MASKS,
    ),
)
DISPATCHERS = {each.name: each for each in EXCHANGES if each.in_plans}
OF_STACKS = {each.in_stacks: each for each in EXCHANGES if each.in_stacks}
IN_MEGATRON = {name: each for each in EXCHANGES for name in each.megatron}
NO_ROWS = "has no rows to send: with ep=1 every rank has all experts"


def exchange_of(plan: PlanFields, usual: Exchange) -> Exchange:
    """The exchange of a plan on a stack with this usual one. Where its ranks send their own rows,
    they do so by each dispatcher that sends a row for each expert."""
    found = usual if plan.experts.dispatcher == USUAL else DISPATCHERS[plan.experts.dispatcher]
    if found.once and plan.ep == 1:
        return ALL_TO_ALL
    if found.once or found.sender is usual.sender:
        return found
    return replace(found, sender=usual.sender)


def dispatcher_refusal(plan: PlanFields) -> str:
    """Why a plan cannot have its dispatcher; "" where it can."""
    needs = DISPATCHERS[plan.experts.dispatcher].needs_ranks
    return NO_ROWS if needs and plan.ep == 1 else ""


def fp8_refusal(plan: PlanFields) -> str:
    """Why a plan cannot send rows in 8 bits; "" where it can, or does not."""
    if not plan.experts.fp8_dispatch:
        return ""
    if plan.ep == 1:
        return NO_ROWS
    if not DISPATCHERS[plan.experts.dispatcher].by_number:
        *others, last = (each.name for each in DISPATCHERS.values() if each.by_number)
        return (
            "needs a dispatcher that sends rows by number, not "
            f"dispatcher={plan.experts.dispatcher}: "
            f"{', '.join(others)} or {last}"
        )
    return rows_refusal(plan.training.recipe)


def rows_refusal(recipe: str) -> str:
    """Why rows cannot be sent in 8 bits with a recipe; "" where they can."""
    if recipe != NO_RECIPE and recipe_of(recipe).sends_rows:
        return ""
    known = " or ".join(each.name for each in RECIPES if each.sends_rows)
    return f"sends rows with their scales of blocks of columns, so it needs recipe={known}"


def model_refusal(gpt: ModelFields, plan: PlanFields) -> str:
    """Why a plan's dispatcher cannot be that of a model; "" where it can."""
    if plan.experts.dispatcher == USUAL:
        return ""
    if not gpt.moe.experts:
        return f"sends rows to experts, and {gpt.name} has none; leave it out"
    if not DISPATCHERS[plan.experts.dispatcher].with_places:
        return ""
    if not gpt.moe.capacity:
        return (
            f"has so many places for each expert, and {gpt.name} drops no token (capacity=0); "
            "give the model a capacity, or leave it out"
        )
    if gpt.biases:
        return f"does not support biases of experts, and {gpt.name} has biases=true"
    return ""
