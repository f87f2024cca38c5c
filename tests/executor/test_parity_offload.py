"""An update that runs on the host, against the plain model: same losses and weights."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.test_parity import TINY, check
from tests.executor.test_parity_experts import DEEPSEEK, plan_of
from workload.passes.table import OVERLAPS


@pytest.mark.distributed
def test_an_update_on_the_host_trains_as_the_plain_model_does() -> None:
    plans = [
        plan_of(data=2, offload="update", zero=2, overlap=OVERLAPS),
        plan_of(z=2, offload="update", micro_batches=2),
        plan_of(data=2, offload="update", zero=3, overlap=()),
        plan_of(data=2, offload="update", offload_share=0.5, zero=1),
        plan_of(x=2, offload="update", zero=1),
    ]
    check(2, TINY, plans)


@pytest.mark.distributed
def test_experts_and_stages_are_updated_on_the_host_too() -> None:
    plans = [
        plan_of(data=2, expert=2, offload="update", zero=1),
        plan_of(pipe=2, offload="update", micro_batches=2),
    ]
    check(2, DEEPSEEK, plans)


@pytest.mark.distributed
def test_activations_that_went_to_the_host_train_as_the_plain_model_does() -> None:
    of: dict[str, Any] = {"offload": "activations"}
    plans = [
        plan_of(**of, x=2, sequence_parallel=True, recompute="selective"),
        plan_of(**of, data=2, zero=3, overlap=OVERLAPS, micro_batches=2),
        plan_of(**of, z=2, recompute="full", overlap=()),
        plan_of(**of, context=2, overlap=OVERLAPS),
    ]
    check(2, TINY, plans)


@pytest.mark.distributed
def test_parameters_of_the_host_train_as_the_plain_model_does() -> None:
    of: dict[str, Any] = {"offload": "parameters", "zero": 3}
    plans = [
        plan_of(**of, data=2, overlap=OVERLAPS, micro_batches=2),
        plan_of(**of, data=2, recompute="full", overlap=()),
        plan_of(**of, data=2, shard=1, overlap=OVERLAPS),
        plan_of(**of, z=2, reshard=False, micro_batches=2),
        plan_of(**of, x=2, overlap=OVERLAPS),
        plan_of(**of, context=2, overlap=OVERLAPS),
    ]
    check(2, TINY, plans)


@pytest.mark.distributed
def test_experts_of_the_host_train_as_the_plain_model_does() -> None:
    of: dict[str, Any] = {"offload": "parameters", "zero": 3}
    check(2, DEEPSEEK, [plan_of(**of, data=2), plan_of(**of, data=2, expert=2, micro_batches=2)])
