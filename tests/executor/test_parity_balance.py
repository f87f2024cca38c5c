"""Groups of experts, the balancing loss and biases of selection against the plain model: same
losses, same weights, same choices, float64."""

from __future__ import annotations

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_experts import DEEPSEEK, EIGHT, FOUR, MIXTRAL, ONE, TWO, plan_of
from workload.gpt import GPT

# Losses and biases are large here, so that an error in either shows.
V3 = DEEPSEEK.changed(
    router_groups=4,
    router_topk_groups=2,
    router_bias=True,
    router_bias_rate=0.01,
    balance_loss=0.1,
)
V2 = MIXTRAL.changed(
    router="softmax", router_groups=4, router_topk_groups=2, balance_loss=0.3, topk=3
)
SWITCH = MIXTRAL.changed(balance_loss=0.3, balance_over="micro_batch")
INTERLEAVED = plan_of(pp=2, vpp=2, micro_batches=4, overlap=(), recompute="full")


@pytest.mark.distributed
def test_every_axis_trains_as_the_plain_model_does() -> None:
    """Where tokens are split over data and experts over x as well, columns over y, and sequences
    over context, whose ranks have one loss together."""
    gpt = V3.changed(layers=1, dense_layers=0)
    check(4, gpt, FOUR[3:4])
    check(2, gpt, [plan_of(y=2), plan_of(cp=2)])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [V3, V2, SWITCH], ids=["V3", "V2", "Switch"])
def test_under_more_plans_it_trains_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(4, gpt, [*FOUR, plan_of(y=2, pp=2, micro_batches=2, recompute="full")])
    check(8, gpt, EIGHT)


@pytest.mark.distributed
@pytest.mark.slow
def test_sequences_that_are_split_have_one_loss() -> None:
    plans = [
        plan_of(cp=2, context_kind="ring"),
        plan_of(cp=2, tp=2, sp=True, context_kind="all_gather"),
    ]
    check(2, V3, plans[:1])
    check(4, V3, plans[1:])


@pytest.mark.distributed
@pytest.mark.slow
def test_with_a_capacity_choices_count_that_are_dropped() -> None:
    check(4, V3.changed(capacity=0.75), FOUR[1:5])


@pytest.mark.distributed
@pytest.mark.slow
def test_chunks_without_experts_leave_the_losses_of_others_alone() -> None:
    check(2, V3.changed(layers=4, dense_layers=2), [INTERLEAVED])
