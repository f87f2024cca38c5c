"""Experts reached by other dispatchers, against the plain model: same losses, weights, choices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor.kernels import experts
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.executor.ranks import on_ranks
from tests.executor.test_parity import check, differences, judge
from tests.executor.test_parity_experts import (
    DEEPSEEK,
    EIGHT,
    EIGHT_OVER_CONTEXT,
    FOUR,
    MIXTRAL,
    MORE_OVER_CONTEXT,
    OVER_CONTEXT,
    SHORT,
    TURNS,
    plan_of,
)
from workload.gpt import GPT
from workload.grid import Grid
from workload.op import Op
from workload.plan import Plan

BIASED = replace(MIXTRAL, biases=True, activation="clamped_swiglu")
PLACED = MIXTRAL.changed(capacity=0.75)
MODELS = {"DeepSeek": DEEPSEEK, "Mixtral": MIXTRAL, "biased": BIASED, "placed": PLACED}


def by(dispatcher: str, plans: list[Plan]) -> list[Plan]:
    return [plan.changed(dispatcher=dispatcher) for plan in plans]


def test_experts_that_no_token_chose_add_nothing_to_any() -> None:
    rows, order, total = torch.empty(0, 3), torch.empty(0, dtype=torch.int64), torch.ones(4, 3)
    op = Op("op", "sum_rows", ("a", "b"), ("c",), attributes={"topk": 2})
    place = RankContext(grid=Grid(), rank=0, device=rows.device, adamw=AdamW())
    experts.sum_rows(op, [rows, order], [total], place)
    assert not total.any()


@pytest.mark.distributed
def test_gathered_tokens_train_as_the_plain_model_does() -> None:
    check(2, SHORT, by("all_gather", [plan_of(dp=2, ep=2, micro_batches=2)]))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("gpt", MODELS.values(), ids=MODELS)
def test_gathered_tokens_train_on_any_ranks_as_the_plain_model_does(gpt: GPT) -> None:
    check(4, gpt, by("all_gather", [*FOUR, *TURNS]))
    check(8, gpt, by("all_gather", EIGHT))


@pytest.mark.slow
@pytest.mark.distributed
def test_gathered_tokens_over_context_train_as_the_plain_model_does() -> None:
    check(4, DEEPSEEK, by("all_gather", [*OVER_CONTEXT, *MORE_OVER_CONTEXT]))
    check(8, DEEPSEEK, by("all_gather", EIGHT_OVER_CONTEXT))


def check_on_nodes(of_node: int, ranks: int, gpt: GPT, plans: list[Plan]) -> None:
    judge(ranks, plans, on_ranks(ranks, differences, gpt, plans, {}, None, of_node))


def apart(dispatcher: str, plans: list[Plan]) -> list[Plan]:
    """Those plans whose experts are on several ranks, by this dispatcher."""
    return by(dispatcher, [plan for plan in plans if plan.ep > 1])


@pytest.mark.distributed
def test_rows_by_way_of_nodes_train_as_the_plain_model_does() -> None:
    plan = plan_of(dp=4, ep=4)
    names = ("hierarchical", "once_per_node", "once_per_rank")
    check_on_nodes(2, 4, SHORT, [plan.changed(dispatcher=name) for name in names])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("dispatcher", ["hierarchical", "once_per_node", "once_per_rank"])
@pytest.mark.parametrize("gpt", MODELS.values(), ids=MODELS)
def test_nodes_of_any_size_train_as_the_plain_model_does(gpt: GPT, dispatcher: str) -> None:
    for of_node in (1, 2, 4):
        check_on_nodes(of_node, 4, gpt, apart(dispatcher, [*FOUR, *TURNS]))
    for of_node in (2, 4):
        check_on_nodes(of_node, 8, gpt, apart(dispatcher, EIGHT))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("dispatcher", ["hierarchical", "once_per_node", "once_per_rank"])
def test_nodes_with_parts_of_sequences_train_as_the_plain_model_does(dispatcher: str) -> None:
    check_on_nodes(2, 4, DEEPSEEK, apart(dispatcher, [*OVER_CONTEXT, *MORE_OVER_CONTEXT]))
    check_on_nodes(4, 8, DEEPSEEK, apart(dispatcher, EIGHT_OVER_CONTEXT))
