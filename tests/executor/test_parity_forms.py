"""Matmuls in other forms than their operands' layouts ask for, against the plain model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.test_parity import BATCH, TINY, check, sample
from tests.executor.test_parity_hybrid import DENSE as HYBRID
from workload.plan import Plan


def tuned(plans: list[Plan]) -> list[Plan]:
    return [plan.changed(matmul_forms="tuned") for plan in plans]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    "swap",
    [{"TN": "NN"}, {"NT": "NN"}, {"NN": "NT", "TN": "NT"}, {"NN": "TN", "NT": "TN"}],
    ids=str,
)
def test_a_forced_form_trains_as_the_plain_model_does(swap: dict[str, str]) -> None:
    check(4, TINY, tuned(sample(4)), **swap)


PIPE = Plan.of(pp=2, schedule="zb-h1", batch=BATCH, mbs=4, precision="fp64")
DATA = Plan.of(dp=2, zero=3, batch=BATCH, mbs=4, precision="fp64")


@pytest.mark.distributed
def test_weight_gradients_of_a_zero_bubble_schedule_may_be_transposed() -> None:
    check(2, TINY, tuned([PIPE]), TN="NN", NT="NN")


@pytest.mark.distributed
def test_weights_sharded_over_data_may_be_transposed() -> None:
    check(2, replace(TINY, layers=1), tuned([DATA]), TN="NN", NT="NN")


@pytest.mark.distributed
def test_those_of_each_mixer_of_a_hybrid_may_be_transposed() -> None:
    check(2, HYBRID, tuned([PIPE.changed(pp=1, schedule="1f1b", tp=2)]), TN="NN", NT="NN")


@pytest.mark.slow
@pytest.mark.distributed
def test_they_may_be_so_on_two_axes() -> None:
    plan = replace(DATA, z=2, mbs=2)
    plans = [plan, replace(plan, reshard=False, zero=2), plan.changed(z=1, tp=2, recompute="full")]
    check(4, TINY, tuned([*plans, replace(PIPE, z=2, mbs=2)]), TN="NN", NT="NN")
