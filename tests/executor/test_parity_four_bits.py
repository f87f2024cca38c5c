"""Four bits on every split against a plain model that casts by the same rules, in float64.

Each element of a gradient is rounded by a number that the plain model has too, on whichever rank.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.test_parity import TINY
from tests.executor.test_parity_mtp import SUPER
from tests.executor.test_parity_recipes import (
    FEW,
    IN_HALVES,
    ROUTED,
    check,
    copied_splits,
    folded_splits,
    with_recipe,
)

# Parts of a rank are whole blocks of 16, of queries and keys too, and of context's chunks.
NARROW = TINY.changed(layers=2, hidden=64, ffn=128, heads=2, head_width=32, sequence=64)
NARROW_LLAMA = replace(
    NARROW, norm="rmsnorm", activation="swiglu", positions="rope", biases=False, layers=1
)
OF_TWO = {
    "dp": replace(FEW, dp=2, zero=1),
    "z": replace(FEW, z=2),
    "tp": replace(FEW, tp=2, sp=True),
    "y": FEW.changed(y=2, recompute="full"),
    "cp": replace(FEW, cp=2),
    "pp": replace(FEW, pp=2, mbs=8),
    "two-way": FEW.changed(pp=2, schedule="dualpipe"),
}


@pytest.mark.distributed
@pytest.mark.parametrize("axis", ["tp"])
def test_four_bits_train_as_the_plain_model_does(axis: str) -> None:
    gpt = NARROW_LLAMA.changed(hidden=32, ffn=64, head_width=16, sequence=16)
    check(2, with_recipe(gpt, "nvfp4", replace(OF_TWO[axis], mbs=8)))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("axis", OF_TWO)
def test_four_bits_are_right_on_every_axis(axis: str) -> None:
    """Two ranks draw for each element of a gradient what one draws."""
    check(2, with_recipe(NARROW, "nvfp4", OF_TWO[axis]))


@pytest.mark.distributed
@pytest.mark.slow
def test_four_bits_are_right_on_one_rank_and_on_four() -> None:
    check(1, with_recipe(NARROW, "nvfp4", FEW))
    four = FEW.changed(tp=2, z=2, recompute="full"), replace(FEW, tp=2, dp=2, zero=3)
    check(4, with_recipe(NARROW_LLAMA, "nvfp4", *four))


# Experts with rows of whole blocks of columns, which fill their blocks of rows in part.
FEW_BITS = ROUTED.changed(
    layers=1, hidden=64, ffn=64, expert_ffn=32, head_width=16, sequence=32, shared_ffn=32
)
FOUR_BIT_EXPERTS = {
    "ep": FEW.changed(dp=2, ep=2, mbs=2, recompute="moe"),
    "tp": replace(FEW, tp=2),
    "y": replace(FEW, y=2),
    "z": replace(FEW, z=2),
    "cp": replace(FEW, cp=2),
    "dp": FEW.changed(dp=2, ep=2, zero=3, recompute="full"),
    "gathered": FEW.changed(dp=2, ep=2, dispatcher="all_gather"),
    "over-x": replace(FEW, tp=2, ep=2, etp=1, sp=True),
}


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("axis", ["ep"])
def test_experts_in_four_bits_train_as_the_plain_model_does(axis: str) -> None:
    plan = replace(FOUR_BIT_EXPERTS[axis], mbs=8)
    check(2, with_recipe(FEW_BITS.changed(hidden=32, heads=2, sequence=16), "nvfp4", plan))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("axis", FOUR_BIT_EXPERTS)
def test_experts_in_four_bits_are_right_on_every_axis(axis: str) -> None:
    """Dropless, with places of which some stay empty, and on fewer columns."""
    plan = FOUR_BIT_EXPERTS[axis]
    models = [FEW_BITS, FEW_BITS.changed(capacity=1.25)]
    if not plan.y > 1:
        models += [FEW_BITS.changed(expert_latent=32)]
    check(2, [case for gpt in models for case in with_recipe(gpt, "nvfp4", plan)])


@pytest.mark.distributed
@pytest.mark.slow
def test_experts_in_four_bits_are_right_on_one_rank_and_on_four() -> None:
    check(1, with_recipe(FEW_BITS, "nvfp4", FEW, FEW.changed(recompute="layernorm+moe_act")))
    check(4, with_recipe(FEW_BITS, "nvfp4", *folded_splits()))
    check(4, with_recipe(FEW_BITS.changed(shared_ffn=64), "nvfp4", IN_HALVES))
    wide = FEW_BITS.changed(shared_ffn=64, expert_ffn=64)
    check(4, with_recipe(wide, "nvfp4", *copied_splits()))
    plan = replace(FEW, pp=2, dp=2, ep=2)
    check(4, with_recipe(replace(FEW_BITS, layers=2), "nvfp4", plan))


# Mamba-2, attention and experts on latent columns, and two depths of a module for further tokens;
# bands of Mamba-2's first linear are of 16 or 64 columns.
HYBRID = SUPER.changed(
    hidden=64,
    heads=4,
    kv_heads=2,
    head_width=16,
    sequence=32,
    ffn=64,
    experts=4,
    topk=2,
    expert_ffn=32,
    shared_ffn=32,
    expert_latent=32,
    router="softmax",
    router_scale=1.0,
    router_bias=False,
    balance_loss=0.0,
    ssm_heads=16,
    ssm_state=4,
)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["nvfp4", "fp8-tensorwise"])
def test_hybrids_with_further_tokens_are_cast_as_in_the_plain_model(recipe: str) -> None:
    check(1, with_recipe(HYBRID, recipe, FEW))
    check(2, with_recipe(HYBRID, recipe, replace(FEW, dp=2, ep=2, zero=1)))
    check(2, with_recipe(HYBRID, recipe, OF_TWO["two-way"].changed(stage_layers=(2, 1))))
    columns = HYBRID.changed(expert_latent=0)
    check(2, with_recipe(columns, recipe, replace(FEW, y=2)))
