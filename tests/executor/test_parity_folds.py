"""Experts split over other ranks than other weights are, against the plain model: same losses, same
weights, same choices, float64."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_experts import DEEPSEEK, MIXTRAL, SHORT, plan_of
from workload.gpt import GPT
from workload.plan import Plan


def over_x(**given: Any) -> Plan:
    """A plan whose ranks of x have rows of their own."""
    return plan_of(sp=True, **given)


# Ranks of x with halves of half of the experts; and of data, and of context.
IN_HALVES = [
    over_x(tp=4, ep=2, etp=2),
    plan_of(dp=4, ep=2, etp=2),
    plan_of(cp=4, ep=2, etp=2),
]
# Ranks of x with copies of whole experts, and more ranks with parts of one than x has.
FOUR = [
    over_x(tp=4, ep=2, etp=1, zero=1),
    over_x(tp=2, dp=2, etp=1, zero=3),
    plan_of(dp=4, etp=2, zero=1),
    over_x(tp=2, dp=2, etp=4),
]
FOUR_OF_CONTEXT = [
    plan_of(cp=4, etp=2, zero=2),
    over_x(tp=2, cp=2, etp=4),
    plan_of(cp=2, dp=2, ep=2, etp=2, zero=3, recompute="full", micro_batches=2),
]
EIGHT = [
    over_x(tp=4, dp=2, ep=4, etp=2),
    over_x(tp=2, dp=4, ep=2, etp=4, zero=3),
    over_x(tp=8, ep=2, etp=2, zero=1),
    over_x(tp=4, z=2, ep=2, etp=1),
    over_x(tp=4, z=2, ep=2, etp=1, zero=3, order="z-tp-y-dp-pp"),
    over_x(tp=4, dp=2, ep=2, etp=1, zero=1, order="z-dp-tp-y-pp"),
    over_x(tp=4, pp=2, ep=2, etp=2, micro_batches=2),
    plan_of(dp=8, ep=2, etp=2, zero=3),
    plan_of(y=2, dp=4, ep=2, etp=2),
]
EIGHT_OF_CONTEXT = [
    plan_of(cp=8, ep=2, etp=2, zero=1),
    over_x(tp=2, cp=2, dp=2, etp=1, zero=3),
    over_x(tp=2, cp=2, dp=2, ep=2, etp=4, zero=3),
]

# States of experts sharded over runs of neighbours on data, in copies over the rest (HSDP).
IN_SHARDS = [
    plan_of(dp=4, ep=2, shard=2, zero=3),
    plan_of(dp=4, ep=1, shard=2, zero=1),
    over_x(tp=2, dp=2, ep=2, etp=1, shard=1, zero=2),
    plan_of(cp=2, dp=2, ep=2, shard=1, zero=3),
]
EIGHT_IN_SHARDS = [
    plan_of(dp=8, ep=2, shard=4, zero=1),
    plan_of(dp=8, ep=2, shard=4, zero=3, recompute="full"),
    plan_of(dp=8, ep=2, etp=2, shard=4, zero=2),
    plan_of(cp=2, dp=4, ep=4, shard=2, zero=3),
    over_x(tp=2, dp=4, ep=4, etp=1, shard=2, zero=3),
    over_x(tp=2, dp=4, ep=1, etp=1, shard=2, zero=3),
    plan_of(z=2, dp=4, ep=2, shard=2, zero=3, order="dp-z-tp-y-pp"),
    plan_of(pp=2, dp=4, ep=2, shard=2, zero=1, micro_batches=2),
]


def by(dispatcher: str) -> list[Plan]:
    return [plan.changed(dispatcher=dispatcher) for plan in IN_HALVES[:2]]


@pytest.mark.distributed
def test_experts_in_parts_copies_and_shards_on_other_ranks_train_as_the_plain_model_does() -> None:
    """More ranks, with both at once, are in the slow sets below."""
    check(2, SHORT, [over_x(tp=2, etp=1), plan_of(dp=2, etp=2)])
    check(4, SHORT, IN_SHARDS[:1])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK], ids=["Mixtral", "DeepSeek"])
def test_in_shards_of_data_experts_do_so_under_more_plans(gpt: GPT) -> None:
    check(4, gpt, IN_SHARDS)
    check(8, gpt, EIGHT_IN_SHARDS)


@pytest.mark.slow
@pytest.mark.distributed
def test_with_places_they_drop_the_same_tokens() -> None:
    """Where two ranks of x have more parts of an expert than x has."""
    check(4, MIXTRAL.changed(capacity=0.75, layers=1), [FOUR[3]])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("capacity", [0.0, 0.75])
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK], ids=["Mixtral", "DeepSeek"])
def test_they_do_so_under_more_plans(gpt: GPT, capacity: float) -> None:
    model = gpt.changed(capacity=capacity)
    check(4, model, [*IN_HALVES, *FOUR])
    check(8, model, EIGHT)
    check(4, model, FOUR_OF_CONTEXT)
    check(8, model, EIGHT_OF_CONTEXT)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("dispatcher", ["all_gather", "hierarchical", "dense", "sparse"])
def test_they_do_so_by_every_dispatcher(dispatcher: str) -> None:
    check(4, MIXTRAL.changed(capacity=0.75), by(dispatcher))
    if dispatcher in ("all_gather", "hierarchical"):
        check(4, DEEPSEEK, by(dispatcher))
