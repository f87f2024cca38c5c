"""Which module of a layer each op belongs to, as a part of a layer may be captured in a graph."""

from __future__ import annotations

import pytest

from workload.gpt import find_model
from workload.lowering.lower import lower
from workload.op import AROUND_DEPTH, COUNTING, FEED_FORWARD, MIXER, ROUTING
from workload.plan_text import parse_plan

MIXTRAL = find_model("tiny-mixtral-130k").changed(shared_ffn=64)


@pytest.mark.parametrize("recompute", ["none", "full", "moe"])
def test_ops_of_a_layer_with_experts_are_of_its_mixer_router_counts_or_experts(
    recompute: str,
) -> None:
    """As Megatron-Core cuts such a layer (cuda_graph_scope): forward, backward and again."""
    plan = parse_plan(f"dp=2,ep=2,recompute={recompute}", batch=2)
    found = {op.label: op.module for op in lower(MIXTRAL, plan).ops if op.part.is_layer}
    mixer = {"norm1", "qkv.matmul", "attention", "out.add", "attention.grad", "add.grad"}
    routing = {"norm2", "router.matmul", "route", "route.grad", "router.grad.weight"}
    routing |= {"shared.up.matmul", "shared.down.grad.weight", "shared.add", "norm2.grad"}
    experts = {"dispatch.exchange", "experts.up.matmul", "down.add", "experts.down.grad.input"}
    for module, labels in (
        (MIXER, mixer),
        (ROUTING, routing),
        (COUNTING, {"dispatch.places", "dispatch.counts.exchange"}),
        (FEED_FORWARD, experts),
    ):
        assert {label: found[label] for label in labels} == dict.fromkeys(labels, module)


def test_what_surrounds_the_layer_of_a_further_token_is_none_of_its_modules() -> None:
    gpt = find_model("tiny-llama-40k").changed(mtp_layers=1)
    ops = [op for op in lower(gpt, parse_plan("dp=1", batch=1)).ops if op.part.is_layer]
    labels = {"mtp.join", "eh_proj.matmul", "enorm.grad", "head.matmul", "mtp.embed.grad.weight"}
    around = {op.label for op in ops if op.module == AROUND_DEPTH}
    assert labels <= around
    assert not {"norm1", "norm2", "attention", "up.matmul", "down.add"} & around
