"""Hybrids of Mamba-2, attention, MLPs and experts against the plain model, which steps through
sequences token by token: same losses, same weights, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.executor.peaks import peaks
from tests.executor.rehearsal import HYBRID
from tests.executor.test_parity import check
from tests.executor.test_parity_experts import DEEPSEEK, MIXTRAL, plan_of
from workload.gpt import GPT
from workload.plan import Plan

# Sequences of 16 tokens in chunks of 4, or in one; heads share the states of a group in pairs.
NANO = MIXTRAL.changed(
    layers=6,
    pattern="MEM*-M",
    activation="squared_relu",
    positions="none",
    shared_ffn=32,
    router="sigmoid",
    router_scale=2.5,
    ssm_heads=8,
    ssm_width=4,
    ssm_state=6,
    ssm_groups=4,
    ssm_chunk=4,
)
DENSE = NANO.changed(
    layers=4,
    pattern="M-*M",
    experts=0,
    topk=0,
    expert_ffn=0,
    shared_ffn=0,
    router="softmax",
    router_scale=1.0,
    ssm_chunk=64,
    ssm_conv=3,
    tied=True,
    norm="layernorm",
)
DENSE_FIELDS: dict[str, Any] = {
    key: DENSE.value(key) for key in ("experts", "topk", "expert_ffn", "shared_ffn", "router")
}
ONE = [plan_of(), plan_of(micro_batches=2, recompute="full", overlap=())]
TWO = [
    plan_of(tp=2, sp=True, recompute="full"),
    plan_of(tp=2, micro_batches=2),
    plan_of(y=2, recompute="selective"),
    plan_of(z=2),
    plan_of(dp=2, zero=1),
    plan_of(pp=2, micro_batches=2),
]
FOUR = [
    plan_of(tp=2, y=2),
    plan_of(tp=4, sp=True),
    plan_of(tp=2, dp=2, zero=3),
    plan_of(z=2, dp=2, micro_batches=2, zero=2),
    plan_of(tp=2, pp=2, micro_batches=4, schedule="zb-h1"),
    plan_of(pp=2, dp=2, micro_batches=2, recompute="full"),
]
EXPERTS = [
    plan_of(dp=4, ep=4, micro_batches=2, zero=1),
    plan_of(tp=2, dp=2, ep=4, etp=1, sp=True),
    plan_of(pp=2, dp=2, ep=2, micro_batches=2),
]
LATENT = [
    plan_of(tp=2, dp=2, ep=2, sp=True, recompute="full"),
    plan_of(tp=2, z=2, micro_batches=2),
    *(plan.changed(overlap=()) for plan in EXPERTS[1:2]),
    plan_of(dp=4, ep=2, zero=3, recompute="moe"),
    plan_of(dp=4, ep=4, dispatcher="all_gather", recompute="full"),
    EXPERTS[2],
]
LATENT_PLACES = [
    plan_of(dp=2, ep=2, dispatcher="dense"),
    plan_of(dp=2, ep=2, dispatcher="sparse", recompute="full"),
    plan_of(dp=2, ep=2, dispatcher="all_gather", micro_batches=2),
]
# Parts of sequences on ranks that trade them for heads around a scan.
CONTEXT_TWO = [
    plan_of(cp=2, zero=1),
    plan_of(cp=2, micro_batches=2, recompute="full"),
    plan_of(cp=2, context_kind="all_gather", zero=3),
    plan_of(cp=2, context_kind="ulysses", recompute="selective"),
]
CONTEXT_FOUR = [
    plan_of(tp=2, cp=2, sp=True),
    plan_of(tp=2, cp=2, micro_batches=2, recompute="full", zero=1),
    plan_of(cp=4, context_heads=2),
    plan_of(cp=2, dp=2, micro_batches=2, zero=2),
    plan_of(cp=2, pp=2, micro_batches=2, schedule="zb-h1"),
    plan_of(y=2, cp=2),
]
CONTEXT_EXPERTS = [
    plan_of(cp=2, ep=2),
    plan_of(cp=2, dp=2, ep=4, micro_batches=2, zero=1),
    plan_of(cp=2, dp=2, ep=2, dispatcher="all_gather", recompute="full"),
]
# Two chunks of a sequence, and a group of heads for each of two ranks.
COARSE: dict[str, Any] = {"ssm_chunk": 8, "ssm_groups": 2}
PARTS = ["layernorm+core_attn+mlp+moe", "layernorm+moe_act+shared_experts"]


@pytest.mark.distributed
@pytest.mark.slow
def test_parts_that_run_again_train_as_the_plain_model_does() -> None:
    check(1, NANO, [plan_of(recompute=each) for each in PARTS])
    check(2, NANO, [plan_of(tp=2, sp=True, recompute=each) for each in PARTS])
    check(2, NANO, [plan_of(dp=2, ep=2, micro_batches=2, recompute=each) for each in PARTS])


@pytest.mark.distributed
@pytest.mark.slow
def test_a_hybrid_on_one_rank_trains_as_the_plain_model_does() -> None:
    check(1, NANO, ONE[1:])


@pytest.mark.distributed
def test_heads_and_groups_over_two_ranks_train_as_the_plain_model_does() -> None:
    """With an MLP and attention behind them."""
    check(2, DENSE.changed(layers=3, pattern="M-*", **COARSE), TWO[:1])


@pytest.mark.distributed
def test_a_scan_of_heads_of_whole_sequences_trains_as_the_plain_model_does() -> None:
    """On two ranks that have half of each sequence in front of it and behind it."""
    check(2, DENSE.changed(layers=3, pattern="M-*", **COARSE), CONTEXT_TWO[:1])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [NANO, DENSE], ids=["experts", "dense"])
def test_hybrids_with_parts_of_sequences_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(2, gpt, CONTEXT_TWO)
    check(2, gpt.changed(**COARSE), CONTEXT_TWO[:2])
    check(4, gpt, CONTEXT_FOUR)


@pytest.mark.distributed
@pytest.mark.slow
def test_experts_of_hybrids_on_ranks_of_context_train_as_the_plain_model_does() -> None:
    check(2, NANO, CONTEXT_EXPERTS[:1])
    check(4, NANO, CONTEXT_EXPERTS[1:])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [NANO, DENSE], ids=["experts", "dense"])
def test_hybrids_under_more_plans_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(4, gpt, FOUR)
    check(2, gpt.changed(ssm_chunk=4), TWO[:1])


@pytest.mark.distributed
@pytest.mark.slow
def test_experts_of_hybrids_on_ranks_of_their_own_train_as_the_plain_model_does() -> None:
    check(4, NANO, EXPERTS)
    check(4, NANO.changed(qk_norm=True, router_bias=True, balance_loss=0.01), EXPERTS)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [NANO, DEEPSEEK], ids=["hybrid", "transformer"])
def test_experts_on_latent_columns_train_as_the_plain_model_does(gpt: GPT) -> None:
    gpt = gpt.changed(expert_latent=24)
    check(1, gpt, ONE)
    check(4, gpt, LATENT)
    check(2, gpt.changed(capacity=1.0), LATENT_PLACES)


@pytest.mark.distributed
@pytest.mark.slow
def test_chunks_on_stages_in_a_v_train_as_the_plain_model_does() -> None:
    gpt = replace(DENSE, layers=8, pattern="M-*MM-*M")
    check(2, gpt, [plan_of(pp=2, vpp=2, micro_batches=4, schedule="zb-v")])


@pytest.mark.slow
def test_the_allocator_holds_what_the_program_says_of_a_hybrid() -> None:
    sizes: dict[str, Any] = {
        "vocab": 512,
        "hidden": 256,
        "sequence": 512,
        "ffn": 1024,
        "ssm_heads": 16,
        "ssm_width": 32,
    }
    alone = HYBRID.changed(pattern="M-*", **DENSE_FIELDS, **sizes)
    plan = Plan.of(batch=8, mbs=8, precision="fp32")
    assert [abs(peak.excess) < 0.01 for peak in peaks(alone, plan)] == [True]
