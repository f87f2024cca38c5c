"""Parts of layers that run once more, against the plain model: same losses, weights and peaks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.ranks import on_ranks
from tests.executor.test_parity import batches, check, losses_of
from tests.executor.test_parity_experts import DEEPSEEK, MIXTRAL, plan_of
from tests.executor.test_parity_latent import LATENT, LITE
from workload.gpt import GPT
from workload.overlaps import OVERLAPS
from workload.plan import Plan

MLP = "core_attn+layernorm+mlp"
WHOLE = "layernorm+moe+mlp"
FINE = "layernorm+moe_act+shared_experts"


def plans(of: str) -> list[Plan]:
    split = {"tp": 2, "dp": 2, "ep": 4, "etp": 1, "sp": True}
    return [
        plan_of(recompute=of, **split, zero=2),
        plan_of(recompute=of, z=2, dp=2, ep=2, zero=3, overlap=OVERLAPS),
        plan_of(recompute=of, pp=2, dp=2, ep=2, micro_batches=2, schedule="zb-h1"),
        plan_of(recompute=of, y=2, dp=2, ep=2, micro_batches=2),
        plan_of(recompute=of, dp=4, ep=4, micro_batches=4, overlap=("a2a", *OVERLAPS)),
    ]


@pytest.mark.distributed
def test_parts_of_layers_with_experts_train_as_the_plain_model_does() -> None:
    split: dict[str, Any] = {"dp": 2, "ep": 2, "zero": 3, "overlap": OVERLAPS}
    check(2, DEEPSEEK, [plan_of(recompute=each, **split) for each in (WHOLE, FINE)])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("of", [WHOLE, FINE, MLP])
def test_parts_go_with_every_axis(of: str) -> None:
    check(4, DEEPSEEK, plans(of))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("dispatcher", ["dense", "sparse"])
def test_parts_go_with_every_dispatcher(dispatcher: str) -> None:
    gpt = MIXTRAL.changed(capacity=0.75)
    for of in ("layernorm+moe", "moe_act"):
        check(4, gpt, [plan.changed(dispatcher=dispatcher) for plan in plans(of)])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [LITE, LATENT], ids=["Lite", "compressed"])
def test_what_leads_up_in_latent_attention_runs_once_more(gpt: GPT) -> None:
    of = "core_attn+layernorm+mla_up_proj"
    split = [plan_of(recompute=of, tp=2, sp=True), plan_of(recompute=of, z=2, zero=3)]
    check(2, gpt, [*split, plan_of(recompute="mla_up_proj", dp=2, micro_batches=2)])


@pytest.mark.distributed
def test_what_swiglu_reads_is_rounded_for_gradients_alone() -> None:
    split = plan_of(dp=2, ep=2, recompute="moe_act")
    plans = [split, split.changed(fp8_swiglu_input=True)]
    whole, kept = on_ranks(2, losses_of, DEEPSEEK, plans, batches(DEEPSEEK))
    assert whole[0] == kept[0]
    assert kept[1:] != whole[1:]
    assert kept == pytest.approx(whole, rel=1e-2)
