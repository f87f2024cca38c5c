"""Latent attention against the plain model: same losses, same weights, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.examples import one_in
from tests.executor.test_parity import check
from tests.executor.test_parity_experts import DEEPSEEK, plan_of
from workload.gpt import GPT, find_model
from workload.splits.plan_values import CHOICES

# Queries and keys 6 wide in each head, 2 of them turned; values are wider, or narrower.
LITE = find_model("tiny-llama-40k").changed(
    vocab=250,
    heads=8,
    kv_heads=0,
    head_width=4,
    kv_rank=10,
    rope_width=2,
    value_width=8,
)
YARN = "yarn:factor=4:original_max_position_embeddings=8:mscale_all_dim=0.7"
LATENT = LITE.changed(q_rank=12, value_width=0, rope_width=4, head_width=2, rope_scaling=YARN)
V3 = DEEPSEEK.changed(
    heads=8, kv_heads=0, head_width=4, q_rank=12, kv_rank=10, rope_width=2, value_width=5
)

ONE = [
    plan_of(),
    plan_of(micro_batches=2, recompute="full", overlap=()),
    plan_of(micro_batches=2, recompute="selective", attention="unfused"),
]
TWO = [
    plan_of(tp=2),
    plan_of(tp=2, sp=True),
    plan_of(tp=2, sp=True, micro_batches=2, overlap=(), recompute="full"),
    plan_of(z=2, recompute="full"),
    plan_of(dp=2, zero=1),
    plan_of(pp=2, micro_batches=2, recompute="selective"),
]
FOUR = [
    plan_of(tp=2, z=2, sp=True, micro_batches=2),
    plan_of(tp=2, dp=2, zero=1, sp=True),
    plan_of(tp=2, dp=2, zero=3, sp=True, reshard=False),
    plan_of(tp=2, dp=2, attention="unfused", recompute="selective"),
    plan_of(z=2, dp=2, zero=2, micro_batches=2),
    plan_of(tp=4, sp=True, attention="unfused"),
    plan_of(tp=2, pp=2, sp=True, micro_batches=4, schedule="zb-h1"),
]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("gpt", "plan"), one_in(2, [(LITE, 1), (LATENT, 2)]), ids=["whole", "compressed"]
)
def test_latent_attention_over_heads_trains_as_the_plain_model_does(gpt: GPT, plan: int) -> None:
    """Without a compressed query and with one."""
    check(2, replace(gpt, layers=1), TWO[plan : plan + 1])


@pytest.mark.distributed
def test_latent_attention_in_single_steps_trains_as_the_plain_model_does() -> None:
    check(1, replace(LATENT, layers=1), ONE[2:])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [LITE, LATENT])
def test_axes_together_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(4, gpt, FOUR)


@pytest.mark.distributed
def test_dropout_of_probabilities_is_that_of_the_plain_model() -> None:
    check(2, replace(LATENT, dropout=0.1, layers=1), [plan_of(tp=2, micro_batches=2)])


@pytest.mark.distributed
def test_over_context_it_trains_as_the_plain_model_does() -> None:
    kinds = CHOICES["context_kind"]
    plans = [plan_of(cp=2, context_kind=kind, recompute="full") for kind in kinds]
    check(2, replace(LITE, layers=1), plans)


OVER_CONTEXT = [
    plan_of(tp=2, cp=2, context_kind=kind, sp=True, recompute="selective")
    for kind in CHOICES["context_kind"]
]
MORE_OVER_CONTEXT = [
    plan_of(cp=4, context_kind=kind, zero=1, micro_batches=2, recompute="full")
    for kind in CHOICES["context_kind"]
]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [LITE, LATENT])
def test_over_context_and_x_it_trains_as_the_plain_model_does(gpt: GPT) -> None:
    check(4, gpt, OVER_CONTEXT)


@pytest.mark.distributed
@pytest.mark.slow
def test_over_context_with_dropout_and_experts_it_trains_as_the_plain_model_does() -> None:
    check(4, replace(LITE, dropout=0.1), OVER_CONTEXT)
    check(4, LATENT, MORE_OVER_CONTEXT)
    check(4, V3, [plan_of(cp=2, dp=2, ep=4, zero=2), plan_of(cp=4, ep=4)])
    check(4, V3, [plan_of(cp=4, context_heads=2, ep=2, zero=1)])


GATHERED: dict[str, Any] = {"context_kind": "all_gather", "context_latents": True}
LATENTS = [
    plan_of(tp=2, cp=2, sp=True, **GATHERED),
    plan_of(cp=4, micro_batches=2, recompute="full", zero=3, **GATHERED),
    plan_of(cp=2, tp=2, overlap=(), **GATHERED),
    plan_of(cp=2, z=2, zero=1, reshard=False, **GATHERED),
    plan_of(cp=2, pp=2, micro_batches=2, schedule="zb-h1", **GATHERED),
]


@pytest.mark.distributed
def test_gathered_latents_train_as_the_plain_model_does() -> None:
    check(2, replace(LATENT, layers=1), [plan_of(cp=2, **GATHERED)])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_gathered_latents_meet_every_other_axis() -> None:
    for gpt in (LITE, LATENT, replace(LITE, dropout=0.1), LITE.changed(documents="7+9")):
        check(4, gpt, LATENTS)
    check(4, V3, [plan_of(cp=2, dp=2, ep=4, zero=2, **GATHERED)])


WITH_EXPERTS = [
    plan_of(tp=2, dp=2, ep=2, sp=True),
    plan_of(tp=2, dp=2, ep=4, etp=1, sp=True, zero=2),
    plan_of(z=2, dp=2, ep=2, zero=1),
    plan_of(pp=2, dp=2, ep=2, micro_batches=2),
]


@pytest.mark.distributed
@pytest.mark.slow
def test_with_experts_it_trains_as_the_plain_model_does() -> None:
    check(4, V3.changed(capacity=1.25), WITH_EXPERTS)
