"""Mixture of experts against the plain model: same losses, same weights, same choices, float64."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.test_parity import BATCH, check
from workload.gpt import GPT, find_model
from workload.overlaps import OVERLAPS
from workload.plan import Plan

MIXTRAL = find_model("tiny-llama-40k").changed(
    vocab=250,
    experts=8,
    topk=2,
    expert_ffn=48,
    router="softmax-topk",
)
DEEPSEEK = MIXTRAL.changed(
    experts=16,
    topk=3,
    expert_ffn=16,
    shared_ffn=32,
    dense_layers=1,
    router="sigmoid",
    router_scale=2.5,
)

SHORT = DEEPSEEK.changed(layers=1, dense_layers=0)


def plan_of(*, micro_batches: int = 1, **given: Any) -> Plan:
    """A plan of the batch in so many micro-batches, in float64."""
    cells = given.get("z", 1) * given.get("dp", 1)
    usual = {"mbs": BATCH // (cells * micro_batches), "overlap": OVERLAPS}
    return Plan.of(**{"batch": BATCH, "precision": "fp64", **usual, **given})


ONE = [plan_of(), plan_of(micro_batches=2, recompute="full", overlap=())]
TWO = [
    plan_of(tp=2),
    plan_of(y=2),
    plan_of(z=2),
    plan_of(dp=2, zero=1),
    plan_of(pp=2, micro_batches=2),
]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    "gpt",
    [MIXTRAL, DEEPSEEK, DEEPSEEK.changed(router="softmax")],
    ids=["Mixtral", "DeepSeek", "softmax"],
)
def test_without_an_axis_of_experts_every_split_trains_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)


@pytest.mark.distributed
def test_without_an_axis_of_experts_x_and_y_train_as_the_plain_model_does() -> None:
    check(2, DEEPSEEK, TWO[:2])


FOUR = [
    plan_of(dp=4, ep=2, zero=1),
    plan_of(dp=4, ep=4, micro_batches=2),
    plan_of(tp=2, dp=2, ep=2, sp=True),
    plan_of(tp=2, dp=2, ep=4, etp=1, sp=True, zero=2),
    plan_of(tp=2, dp=2, ep=2, etp=1, sp=True, micro_batches=2),
    plan_of(y=2, dp=2, ep=2, recompute="full", overlap=()),
    plan_of(z=2, dp=2, ep=2, zero=3),
    plan_of(pp=2, dp=2, ep=2, micro_batches=2),
]
EIGHT = [
    plan_of(tp=2, y=2, dp=2, ep=2),
    plan_of(tp=2, z=2, dp=2, ep=2, recompute="full"),
    plan_of(tp=2, dp=4, ep=4, etp=1, sp=True, zero=3),
    plan_of(tp=2, pp=2, dp=2, ep=4, etp=1, sp=True, micro_batches=2),
    plan_of(dp=8, ep=8, zero=1),
    plan_of(y=2, dp=4, ep=2, zero=2, recompute="selective"),
]


@pytest.mark.distributed
def test_an_axis_of_experts_trains_as_the_plain_model_does() -> None:
    """On ranks of their own of data and x; the other axes are in the slow set below."""
    check(4, SHORT, FOUR[3:4])


TURNS = [
    plan_of(dp=4, ep=4, micro_batches=4, overlap=("a2a",)),
    plan_of(dp=4, ep=2, micro_batches=2, zero=3, overlap=("a2a", *OVERLAPS)),
    plan_of(
        tp=2,
        dp=2,
        ep=4,
        etp=1,
        sp=True,
        recompute="full",
        micro_batches=4,
        overlap=("a2a", *OVERLAPS),
    ),
]


@pytest.mark.distributed
def test_two_micro_batches_in_turns_train_as_the_plain_model_does() -> None:
    turns = plan_of(dp=2, ep=2, micro_batches=2, zero=3, overlap=("a2a", *OVERLAPS))
    check(2, DEEPSEEK, [turns])


@pytest.mark.slow
@pytest.mark.distributed
def test_two_micro_batches_in_turns_do_so_with_all_ranks_holding_other_experts() -> None:
    check(4, DEEPSEEK, TURNS)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_micro_batches_in_turns_drop_the_same_tokens_as_the_plain_model() -> None:
    check(4, MIXTRAL.changed(capacity=0.75), TURNS)


@pytest.mark.distributed
def test_with_places_experts_drop_the_same_tokens_as_the_plain_models() -> None:
    check(2, MIXTRAL.changed(capacity=0.75, layers=1), [plan_of(dp=2, ep=2, micro_batches=2)])


OVER_CONTEXT = [
    plan_of(cp=2, dp=2, ep=4, zero=1),
    plan_of(tp=2, cp=2, ep=4, etp=1, sp=True, micro_batches=2),
    plan_of(cp=4, ep=2, zero=1, recompute="full", context_kind="all_gather"),
    plan_of(tp=2, cp=2, ep=2, etp=1, sp=True, zero=1),
]
MORE_OVER_CONTEXT = [
    plan_of(cp=2, dp=2, ep=2, zero=3),
    plan_of(cp=2, dp=2, ep=2, overlap=(), micro_batches=2),
    plan_of(tp=2, cp=2, ep=2, context_kind="ulysses"),
    plan_of(cp=4, ep=4, overlap=("a2a", *OVERLAPS), micro_batches=4),
    plan_of(z=2, cp=2, ep=2, zero=2),
    plan_of(pp=2, cp=2, ep=2, micro_batches=2, order="cp-dp-tp-pp"),
]
EIGHT_OVER_CONTEXT = [
    plan_of(cp=2, dp=4, ep=4, zero=2),
    plan_of(cp=4, dp=2, ep=2, zero=3),
    plan_of(cp=4, dp=2, ep=8, order="tp-dp-y-z-cp-pp"),
    plan_of(tp=2, cp=2, dp=2, ep=8, etp=1, sp=True, zero=1),
    plan_of(tp=2, cp=4, ep=4, etp=1, sp=True, zero=1),
    plan_of(tp=2, cp=2, dp=2, ep=2, etp=1, sp=True, zero=2),
    plan_of(y=2, cp=2, dp=2, ep=4, recompute="selective"),
]


@pytest.mark.distributed
def test_experts_over_context_train_as_the_plain_model_does() -> None:
    check(2, SHORT, [plan_of(cp=2, ep=2, zero=1, recompute="full")])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK], ids=["Mixtral", "DeepSeek"])
def test_experts_over_context_under_more_plans(gpt: GPT) -> None:
    for model in (gpt, gpt.changed(capacity=0.75)):
        check(4, model, [*OVER_CONTEXT, *MORE_OVER_CONTEXT])
        check(8, model, EIGHT_OVER_CONTEXT)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("capacity", [0.0, 0.5, 1.25])
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK], ids=["Mixtral", "DeepSeek"])
def test_experts_on_more_ranks_train_as_the_plain_model_does(gpt: GPT, capacity: float) -> None:
    check(4, gpt.changed(capacity=capacity), FOUR)
    check(8, gpt.changed(capacity=capacity), EIGHT)
