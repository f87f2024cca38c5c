"""Passes in turns in a pipeline, and gradients of weights put off: same losses and weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_experts import DEEPSEEK, MIXTRAL, plan_of
from workload.overlaps import EVERY, OVERLAPS

DEEP = replace(DEEPSEEK, layers=4)
PAIRS = [
    plan_of(pp=2, vpp=2, dp=2, ep=2, micro_batches=4, overlap=("a2a",)),
    plan_of(pp=2, vpp=2, dp=2, ep=2, micro_batches=4, overlap=EVERY, zero=3),
]
IN_V = {"pp": 2, "vpp": 2, "schedule": "dualpipe-v", "dp": 2, "ep": 2}


@pytest.mark.slow
@pytest.mark.distributed
def test_passes_in_turns_in_a_pipeline_train_as_the_plain_model_does() -> None:
    v = plan_of(**IN_V, micro_batches=4, overlap=("a2a", *OVERLAPS))
    check(4, DEEP, [*PAIRS, v])


@pytest.mark.distributed
def test_with_gradients_of_weights_put_off_they_do_so_too() -> None:
    """Without a pipeline; with one in the slow set below."""
    check(2, DEEPSEEK, [plan_of(dp=2, ep=2, micro_batches=4, overlap=EVERY, zero=3)])


@pytest.mark.slow
@pytest.mark.distributed
def test_they_do_so_recomputed_and_with_places_for_tokens() -> None:
    again = [plan.changed(recompute="full") for plan in PAIRS]
    v = [plan_of(**IN_V, micro_batches=4, overlap=("a2a",), zero=2)]
    check(4, MIXTRAL.changed(layers=4, capacity=0.75), [*again, *v])


@pytest.mark.slow
@pytest.mark.distributed
def test_gradients_of_weights_that_are_put_off_are_the_plain_models() -> None:
    alone = plan_of(dp=4, ep=2, micro_batches=2, overlap=("wgrad",))
    over_x = plan_of(tp=2, dp=2, ep=2, zero=3, micro_batches=2, overlap=EVERY)
    stages = plan_of(pp=2, dp=2, ep=2, micro_batches=2, overlap=("wgrad", "ors", "oar"))
    check(4, DEEP, [alone, over_x, stages])
