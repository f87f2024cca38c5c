"""An update that runs on the host, against the plain model: same losses and weights."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.test_parity import TINY, check
from tests.executor.test_parity_experts import DEEPSEEK, plan_of
from workload.overlaps import OVERLAPS


@pytest.mark.distributed
def test_an_update_on_the_host_trains_as_the_plain_model_does() -> None:
    check(2, TINY, [UPDATES[0], UPDATES[3]])


@pytest.mark.distributed
def test_activations_that_went_to_the_host_train_as_the_plain_model_does() -> None:
    check(2, TINY, ACTIVATIONS[:2])


@pytest.mark.distributed
def test_parameters_of_the_host_train_as_the_plain_model_does() -> None:
    check(2, TINY, PARAMETERS[:1])


@pytest.mark.distributed
def test_experts_of_the_host_train_as_the_plain_model_does() -> None:
    """Updated there, or with their parameters there."""
    check(2, DEEPSEEK, [OF_EXPERTS[0], OF_EXPERTS[3]])


UPDATES = [
    plan_of(dp=2, offload="update", zero=2, overlap=OVERLAPS),
    plan_of(z=2, offload="update", micro_batches=2),
    plan_of(dp=2, offload="update", zero=3, overlap=()),
    plan_of(dp=2, offload="update", offload_share=0.5, zero=1),
    plan_of(tp=2, offload="update", zero=1),
]
TO_HOST: dict[str, Any] = {"offload": "activations"}
ACTIVATIONS = [
    plan_of(**TO_HOST, tp=2, sp=True, recompute="selective"),
    plan_of(**TO_HOST, dp=2, zero=3, overlap=OVERLAPS, micro_batches=2),
    plan_of(**TO_HOST, z=2, recompute="full", overlap=()),
    plan_of(**TO_HOST, cp=2, overlap=OVERLAPS),
]
OF_HOST: dict[str, Any] = {"offload": "parameters", "zero": 3}
PARAMETERS = [
    plan_of(**OF_HOST, dp=2, overlap=OVERLAPS, micro_batches=2),
    plan_of(**OF_HOST, dp=2, recompute="full", overlap=()),
    plan_of(**OF_HOST, dp=2, shard=1, overlap=OVERLAPS),
    plan_of(**OF_HOST, z=2, reshard=False, micro_batches=2),
    plan_of(**OF_HOST, tp=2, overlap=OVERLAPS),
    plan_of(**OF_HOST, cp=2, overlap=OVERLAPS),
]
OF_EXPERTS = [
    plan_of(dp=2, ep=2, offload="update", zero=1),
    plan_of(pp=2, offload="update", micro_batches=2),
    plan_of(**OF_HOST, dp=2),
    plan_of(**OF_HOST, dp=2, ep=2, micro_batches=2),
]


@pytest.mark.slow
@pytest.mark.distributed
def test_under_every_plan_what_is_on_the_host_trains_as_the_plain_model_does() -> None:
    check(2, TINY, [*UPDATES, *ACTIVATIONS, *PARAMETERS])
    check(2, DEEPSEEK, OF_EXPERTS)
