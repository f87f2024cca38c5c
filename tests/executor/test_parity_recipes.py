"""Recipes on every split against a plain model that casts by the same rules, in float64.

Scales are maxima, which do not depend on the order in which ranks take them, and fp64 sums differ
by 1e-16 of their size: a value would have to lie that near the middle between two numbers of 8 bits
to be rounded otherwise. So losses and weights agree as they do without a recipe, to 1e-9.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch

from executor.groups import ProcessGroups
from executor.train import Trainer
from tests import reference_recipes
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.test_parity import (
    ADAMW,
    BATCH,
    CLIP,
    LR,
    TINY,
    TOLERANCE,
    batches,
    family,
    sample,
    start,
)
from tests.executor.test_parity import _weight_error as weight_error
from tests.reference import Trained
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan

TENSORS, BLOCKS = ("fp8-tensorwise", "fp8-delayed"), ("fp8-blockwise", "mxfp8")
# Parts of a rank are whole blocks of 128: of widths over x and y, and of a micro-batch's tokens.
WIDE = TINY.changed(layers=1, hidden=256, ffn=512, head_width=64, sequence=32)
LLAMA = replace(TINY, norm="rmsnorm", activation="swiglu", positions="rope", biases=False)
ROUTED = LLAMA.changed(experts=4, topk=2, expert_ffn=32)
FEW = Plan.of(batch=BATCH, mbs=4, precision="fp64")
# Ranks of x hold a half of each of half of the experts.
IN_HALVES = replace(FEW, tp=4, ep=2, etp=2, sp=True)


Tokens = tuple[tuple[int, ...], ...]


def tokens_of(gpt: GPT, plan: Plan, *axes: str, apart: bool = False) -> Tokens:
    """For each micro-batch the tokens of the batch that ranks along these axes have together, one
    rank's behind the other's; where context splits a sequence, it gives a rank chunk i and the
    i-th one from the end. Ranks of y have parts of the same rows, and so have those of x, unless
    these have rows `apart`; where there are two directions (`ways`), those of each are tensors of
    their own."""
    ways, parts = 2 if plan.pipeline.schedule == "dualpipe" else 1, 2 * plan.cp
    cells = plan.z * plan.dp * ways
    of_x = plan.tp if apart else 1
    found: list[tuple[int, ...]] = []
    chunk = gpt.sequence // parts
    each = itertools.product(range(BATCH // (cells * plan.mbs)), range(ways))
    for micro_batch, way in each:
        for group in plan.grid.groups(*axes).tolist():
            mine: list[int] = []
            for at in map(plan.grid.coordinates, group):
                if at["y"] == at["pp"] == 0 and (of_x > 1 or at["tp"] == 0):
                    whole: list[int] = []
                    own = at["z"] + plan.z * at["dp"]
                    first = micro_batch * cells + own * ways + way
                    for sequence in range(plan.mbs):
                        start = (first * plan.mbs + sequence) * gpt.sequence
                        for part in (at["cp"], parts - 1 - at["cp"]):
                            whole += range(start + part * chunk, start + (part + 1) * chunk)
                    size = len(whole) // of_x
                    mine += whole[at["tp"] % of_x * size :][:size]
            found += [tuple(mine)] if mine else []
    return tuple(found)


def plain_of(gpt: GPT, plan: Plan) -> Trained:
    """A tensor of one scale, or of two levels of them, has the rows of all ranks of context, and no
    block those of two ranks. Experts have the rows of all ranks that exchange them, of one scale
    those of all ranks of context besides."""
    axes = ("cp",) if plan.training.recipe in (*TENSORS, "nvfp4") else ()
    of_experts = *plan.expert_tensor_axes, *plan.expert_axes
    if plan.training.recipe in TENSORS:
        of_experts = *axes, "tp", *of_experts
    of_experts = tuple(plan.grid.dimensions(*of_experts))
    own_rows = plan.sp
    tokens = tokens_of(gpt, plan, *axes), tokens_of(gpt, plan, *of_experts, apart=own_rows)
    rows = plan.mbs * gpt.sequence // plan.cp
    run = rows * plan.expert_parts // plan.tp if gpt.moe.capacity else 0
    return plain(gpt, plan.training.recipe, *tokens, run, not plan.sp, plan.experts.fp8_dispatch)


@cache
def plain(
    gpt: GPT,
    recipe: str,
    tokens: Tokens,
    of_experts: Tokens,
    run: int,
    shares: bool,
    narrow: bool,
) -> Trained:
    pairs = [(batch[:, :-1], batch[:, 1:]) for batch in batches(gpt)]
    return reference_recipes.train(
        start(gpt),
        pairs,
        recipe=recipe,
        tokens=torch.tensor(tokens),
        of_experts=torch.tensor(of_experts),
        heads=gpt.attention.heads,
        lr=LR,
        clip=CLIP,
        family=family(gpt, run),
        shares=shares,
        narrow=narrow,
    )


def differences(rank: int, cases: list[tuple[GPT, Plan]]) -> list[tuple[float, float]]:
    """On rank 0 for each case the largest relative error of losses and of weights."""
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for gpt, plan in cases:
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        trainer = Trainer(program, groups, rank=rank, device=torch.device("cpu"), adamw=ADAMW)
        whole = start(gpt)
        trainer.start_from((name, whole[name]) for name in program.layouts)
        run = trainer.run(batches(gpt))
        assert [span.op.name for span in run.timeline.spans] == [op.name for op in program.ops]
        assert run.carried == program.comm_bytes
        if not gpt.moe.experts:
            assert run.peak_bytes >= program.peak.total_bytes
        if rank:
            weight_error(trainer, {})
            continue
        expected = plain_of(gpt, plan)
        pairs = zip(run.steps, expected.losses, strict=True)
        loss_error = max(abs(step.loss - loss) / loss for step, loss in pairs)
        found.append((loss_error, weight_error(trainer, expected.weights)))
    return found


def check(ranks: int, cases: list[tuple[GPT, Plan]]) -> None:
    found = on_ranks(ranks, differences, cases)
    pairs = zip(cases, found, strict=True)
    assert [(str(case[1]), errors) for case, errors in pairs if max(errors) > TOLERANCE] == []


def with_recipe(gpt: GPT, recipe: str, *plans: Plan) -> list[tuple[GPT, Plan]]:
    return [(gpt, plan.changed(recipe=recipe)) for plan in plans]


def splits() -> list[Plan]:
    """Plans on 4 ranks, with what besides grids matters to a recipe."""
    return [
        FEW.changed(tp=2, z=2, recompute="full"),
        replace(FEW, y=2, dp=2, zero=1),
        replace(FEW, tp=2, dp=2, zero=3, sp=True),
        replace(FEW, z=2, pp=2),
        FEW.changed(tp=2, y=2, overlap=()),
        replace(FEW, dp=2, cp=2),
    ]


@pytest.mark.distributed
def test_one_scale_for_a_tensor_trains_as_the_plain_model_does() -> None:
    check(4, with_recipe(TINY, TENSORS[0], splits()[2]))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", TENSORS)
def test_one_scale_for_a_tensor_is_right_on_every_split(recipe: str) -> None:
    check(4, with_recipe(TINY, recipe, *splits()))
    parts = [FEW.changed(recompute=each) for each in ("mlp", "layernorm", "core_attn")]
    check(1, with_recipe(LLAMA, recipe, *parts))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", TENSORS)
def test_one_scale_for_a_tensor_is_right_on_every_grid(recipe: str) -> None:
    for ranks in (1, 2, 4, 8):
        check(ranks, with_recipe(TINY, recipe, *sample(ranks)))
    check(4, with_recipe(LLAMA, recipe, *splits()))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", BLOCKS)
def test_scales_of_blocks_train_as_the_plain_model_does(recipe: str) -> None:
    plans = [plan for plan in splits() if plan.pp == 1]
    check(4, with_recipe(WIDE, recipe, *plans))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", TENSORS)
def test_experts_are_cast_as_one_tensor_of_all_ranks_that_exchange_rows(recipe: str) -> None:
    check(4, with_recipe(ROUTED, recipe, *expert_splits()))


# Experts get some 16 rows each: of a block of 32 as of one of 128 they fill a part.
ROUTED_WIDE = {
    "mxfp8": ROUTED.changed(hidden=64, ffn=64, expert_ffn=64, head_width=16, layers=1),
    "fp8-blockwise": ROUTED.changed(
        layers=1, hidden=256, ffn=512, expert_ffn=256, head_width=64, sequence=32
    ),
}


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("recipe", BLOCKS)
def test_blocks_of_experts_have_rows_of_one_expert(recipe: str, half: int) -> None:
    """With the rows of each filled up with zeros, on splits that keep to blocks."""
    check(2, with_recipe(ROUTED_WIDE[recipe], recipe, *block_splits()[half::2]))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", BLOCKS)
def test_blocks_of_experts_on_one_rank_and_on_two_stages(recipe: str) -> None:
    gpt = ROUTED_WIDE[recipe]
    check(1, with_recipe(gpt, recipe, FEW, FEW.changed(recompute="layernorm+moe_act")))
    check(2, with_recipe(replace(gpt, layers=2), recipe, replace(FEW, pp=2)))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*BLOCKS, "fp8-tensorwise"])
def test_experts_on_four_ranks_are_cast_as_in_the_plain_model(recipe: str) -> None:
    gpt = ROUTED_WIDE.get(recipe, ROUTED_WIDE["mxfp8"])
    check(4, with_recipe(gpt, recipe, *folded_splits()))
    plan = replace(FEW, pp=2, dp=2, ep=2)
    check(4, with_recipe(replace(gpt, layers=2), recipe, plan))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", BLOCKS)
def test_rows_sent_in_8_bits_train_as_in_the_plain_model(recipe: str) -> None:
    gpt = ROUTED_WIDE[recipe]
    check(2, with_recipe(gpt, recipe, *narrow_splits()[:3]))
    check(4, with_recipe(gpt, recipe, *narrow_splits()[3:]))
    check(2, with_recipe(gpt.changed(capacity=1.25), recipe, narrow_splits()[0]))


@pytest.mark.slow
@pytest.mark.distributed
def test_rows_sent_in_8_bits_on_two_ranks() -> None:
    check(2, with_recipe(ROUTED_WIDE["mxfp8"], "mxfp8", narrow_splits()[0]))


def narrow_splits() -> list[Plan]:
    """Plans of experts on 2 ranks, three of them, and on 4."""
    narrow = FEW.changed(dp=2, ep=2, recipe=BLOCKS[0], fp8_dispatch=True)
    return [
        narrow,
        narrow.changed(recompute="full", zero=3),
        narrow.changed(dispatcher="hierarchical", recompute="moe"),
        narrow.changed(dp=4, dispatcher="once_per_node"),
        replace(narrow, cp=2, ep=4),
        replace(narrow, tp=2),
        narrow.changed(z=2, overlap=(*FEW.training.overlap, "a2a")),
        replace(narrow, tp=2, ep=4, etp=1, sp=True),
    ]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fp8-tensorwise", *BLOCKS])
def test_experts_with_copies_on_x_and_parts_on_data_are_cast_as_in_the_plain_model(
    recipe: str,
) -> None:
    gpt, plans = ROUTED_WIDE.get(recipe, ROUTED_WIDE["mxfp8"]), copied_splits()
    if recipe in BLOCKS:
        plans = [plan for plan in plans if plan.etp < 4]  # four parts cut blocks
        sends = [plan.changed(recipe=recipe) for plan in plans if plan.ep > 1]
        plans += [plan.changed(fp8_dispatch=True) for plan in sends]
    check(4, with_recipe(gpt, recipe, *plans))


def copied_splits() -> list[Plan]:
    """Plans on 4 ranks with copies of experts on x, or parts of them on data or context."""
    beside = replace(FEW, tp=2, sp=True)
    return [
        replace(beside, dp=2, etp=1),
        replace(FEW, tp=4, ep=2, etp=1, sp=True, zero=1),
        replace(FEW, dp=4, ep=2, etp=2, zero=1),
        replace(FEW, dp=2, cp=2, ep=2, etp=2),
        replace(beside, dp=2, etp=4),
        FEW.changed(dp=2, z=2, etp=2, recompute="full"),
    ]


def block_splits() -> list[Plan]:
    """Plans on 2 ranks that keep to blocks of 128."""
    return [
        FEW.changed(dp=2, ep=2, mbs=2, recompute="moe"),
        replace(FEW, tp=2),
        replace(FEW, y=2),
        replace(FEW, z=2),
        replace(FEW, cp=2),
        replace(FEW, dp=2, ep=2, zero=3),
        FEW.changed(dp=2, ep=2, recompute="full"),
        FEW.changed(dp=2, ep=2, dispatcher="all_gather"),
        replace(FEW, tp=2, ep=2, etp=1, sp=True),
    ]


def folded_splits() -> list[Plan]:
    return [
        replace(FEW, z=2, dp=2, ep=2),
        replace(FEW, y=2, dp=2, ep=2),
        replace(FEW, dp=4, ep=2, zero=3),
        FEW.changed(tp=2, dp=2, ep=2, recompute="full"),
        replace(FEW, tp=2, dp=2, ep=4, etp=1, sp=True),
        replace(FEW, dp=2, cp=2, ep=2),
        replace(FEW, dp=2, cp=2, ep=4),
    ]


def expert_splits() -> list[Plan]:
    return [
        replace(FEW, dp=4, ep=2),
        replace(FEW, dp=4, ep=4, zero=3),
        FEW.changed(tp=2, dp=2, ep=2, recompute="full"),
        replace(FEW, pp=2, dp=2, ep=2),
        IN_HALVES,
    ]
