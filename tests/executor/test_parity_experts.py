"""Mixture of experts against the plain model: same losses, same weights, same choices, float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.test_parity import BATCH, check
from workload.gpt import GPT, find_model
from workload.passes.table import OVERLAPS
from workload.plan import Plan

MIXTRAL = replace(
    find_model("tiny-llama-40k"),
    vocab=250,
    experts=8,
    topk=2,
    expert_ffn=48,
    router="softmax-topk",
)
DEEPSEEK = replace(
    MIXTRAL,
    experts=16,
    topk=3,
    expert_ffn=16,
    shared_ffn=32,
    dense_layers=1,
    router="sigmoid",
    router_scale=2.5,
)


def plan_of(**given: object) -> Plan:
    sizes = {axis: int(str(given.get(axis, 1))) for axis in ("z", "data")}
    micro_batches = int(str(given.pop("micro_batches", 1)))
    usual = {"micro_batch": BATCH // (sizes["z"] * sizes["data"] * micro_batches)}
    return Plan(**{"batch": BATCH, "precision": "fp64", "overlap": OVERLAPS, **usual, **given})


ONE = [plan_of(), plan_of(micro_batches=2, recompute="full", overlap=())]
TWO = [
    plan_of(x=2),
    plan_of(y=2),
    plan_of(z=2),
    plan_of(data=2, zero=1),
    plan_of(pipe=2, micro_batches=2),
]


@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK, replace(DEEPSEEK, router="softmax")])
def test_without_an_axis_of_experts_every_split_trains_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)


FOUR = [
    plan_of(data=4, expert=2, zero=1),
    plan_of(data=4, expert=4, micro_batches=2),
    plan_of(x=2, data=2, expert=2, sequence_parallel=True),
    plan_of(x=2, data=2, expert=4, expert_tensor=1, sequence_parallel=True, zero=2),
    plan_of(y=2, data=2, expert=2, recompute="full", overlap=()),
    plan_of(z=2, data=2, expert=2, zero=3),
    plan_of(pipe=2, data=2, expert=2, micro_batches=2),
]
EIGHT = [
    plan_of(x=2, y=2, data=2, expert=2),
    plan_of(x=2, z=2, data=2, expert=2, recompute="full"),
    plan_of(x=2, data=4, expert=4, expert_tensor=1, sequence_parallel=True, zero=3),
    plan_of(
        x=2, pipe=2, data=2, expert=4, expert_tensor=1, sequence_parallel=True, micro_batches=2
    ),
    plan_of(data=8, expert=8, zero=1),
    plan_of(y=2, data=4, expert=2, zero=2, recompute="selective"),
]


@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK])
def test_with_places_for_all_tokens_an_axis_of_experts_trains_as_the_plain_model_does(
    gpt: GPT,
) -> None:
    check(4, replace(gpt, capacity=1.0), FOUR)


@pytest.mark.distributed
def test_on_eight_ranks() -> None:
    check(8, replace(DEEPSEEK, capacity=1.25), EIGHT)
