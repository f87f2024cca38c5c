"""Gated attention against the plain model: same losses, same weights, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.rehearsal import HYBRID
from tests.executor.test_parity import check
from tests.executor.test_parity_experts import MIXTRAL, plan_of
from workload.gpt import find_model

# Two heads of queries share keys and values; queries and keys are normalised and turned.
GATED = find_model("tiny-llama-40k").changed(vocab=250, qk_norm=True, output_gate=True)
WITH_BIASES = find_model("tiny-30k").changed(vocab=250, output_gate=True, dropout=0.1)

TWO = [
    plan_of(tp=2, sp=True, recompute="selective"),
    plan_of(cp=2, micro_batches=2),
    plan_of(cp=2, context_kind="ulysses"),
]
MORE = [
    plan_of(y=2, recompute="full"),
    plan_of(z=2),
    plan_of(dp=2, zero=3),
    plan_of(pp=2, micro_batches=2, schedule="zb-h1"),
    plan_of(cp=2, context_kind="all_gather", recompute="selective"),
]


@pytest.mark.distributed
def test_a_gated_output_trains_as_the_plain_model_does() -> None:
    check(1, replace(GATED, layers=1), [plan_of().changed(attention="unfused")])
    check(2, replace(GATED, layers=1), TWO)


@pytest.mark.distributed
@pytest.mark.slow
def test_under_more_plans_it_trains_as_the_plain_model_does() -> None:
    check(2, GATED, MORE)
    check(2, WITH_BIASES, [plan_of(tp=2, sp=True), plan_of(cp=2, context_kind="ulysses")])
    check(4, GATED, [plan_of(tp=2, cp=2, zero=1), plan_of(tp=2, y=2, recompute="selective")])


@pytest.mark.distributed
@pytest.mark.slow
def test_beside_experts_and_in_hybrids_it_trains_as_the_plain_model_does() -> None:
    check(2, MIXTRAL.changed(output_gate=True), [plan_of(dp=2, ep=2)])
    check(2, HYBRID.changed(output_gate=True), [plan_of(tp=2, sp=True)])
