"""Experts reached by dense masks or sparse kernels, against the plain model: same losses, weights
and choices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_experts import DEEPSEEK, EIGHT, FOUR, MIXTRAL, ONE, TWO, plan_of
from workload.gpt import GPT
from workload.overlaps import OVERLAPS
from workload.plan import Plan

GELU = MIXTRAL.changed(activation="gelu", capacity=0.75)
TURNS = plan_of(dp=4, ep=4, micro_batches=4, overlap=("a2a", *OVERLAPS), recompute="selective")


def by(dispatcher: str, plans: list[Plan]) -> list[Plan]:
    return [plan.changed(dispatcher=dispatcher) for plan in plans]


@pytest.mark.distributed
def test_masks_drop_the_same_tokens_as_the_plain_model() -> None:
    plan = plan_of(dp=2, ep=2, micro_batches=2)
    plans = [*by("dense", [plan]), *by("sparse", [plan.changed(recompute="full")])]
    check(2, MIXTRAL.changed(capacity=0.75, layers=1), plans)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("capacity", [0.5, 1.25])
@pytest.mark.parametrize("how", ["dense", "sparse"])
@pytest.mark.parametrize("gpt", [MIXTRAL, DEEPSEEK, GELU], ids=["Mixtral", "DeepSeek", "GELU"])
def test_places_on_any_ranks_train_as_the_plain_model_does(
    gpt: GPT, how: str, capacity: float
) -> None:
    gpt = gpt.changed(capacity=capacity)
    check(1, gpt, by(how, ONE))
    check(2, gpt, by(how, TWO))
    check(4, gpt, by(how, [*FOUR, TURNS]))
    check(8, gpt, by(how, EIGHT))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("more", [{"attention": "unfused"}, {"matmul_forms": "tuned"}], ids=str)
def test_masks_go_with_other_kernels(more: dict[str, Any]) -> None:
    check(4, DEEPSEEK.changed(capacity=0.75), by("dense", [plan_of(dp=4, ep=2, **more)]))
