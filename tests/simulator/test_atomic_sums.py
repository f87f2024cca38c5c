"""Sums of experts' rows by atomic additions, which take a time for each element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.stacks import load_stack
from topologies.machine_files import load_machine
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import ELEMENTS, Op
from workload.plan import Plan

# 8,192 tokens of 4,096 columns, each for 8 experts, as in the measurement.
SIZES: dict[str, Any] = {
    **{"layers": 1, "hidden": 4096, "heads": 32, "ffn": 4096, "sequence": 8192, "vocab": 512},
    **{"experts": 8, "topk": 8, "expert_ffn": 512, "activation": "swiglu", "norm": "rmsnorm"},
}
GPT_8 = GPT.of(name="eight", **SIZES)
PLAN = Plan(dp=8, ep=8, batch=8, mbs=1)


def sums_of(stack: str, machine: str, plan: Plan = PLAN) -> list[tuple[Op, float]]:
    """The sums of rows of a step, and the seconds of each."""
    found = load_machine(machine)
    kernels = load_stack(stack).kernels(GPT_8, plan, found)
    cost = AnalyticCosts(found, kernels=kernels)
    ops = lower(GPT_8, plan, behaviour=kernels.behaviour).ops
    return [(op, cost.seconds(op)) for op in ops if op.kind == "sum_rows"]


@pytest.mark.parametrize("dispatcher", ["usual", "all_gather"])
@pytest.mark.parametrize("machine", ["dgx-h100", "jupiter-booster"])
def test_index_add_takes_what_was_measured_on_hopper(dispatcher: str, machine: str) -> None:
    """index_select's backward pass of these rows takes 2.304 ms in 16 bits (DeepLink-org/DLBlas,
    pull request 66), whatever the bandwidth of the memory."""
    plan = Plan.of(dp=8, ep=8, batch=8, mbs=1, dispatcher=dispatcher)
    found = sums_of("megatron-core", machine, plan)
    assert len(found) == 2  # outputs of experts, and gradients of tokens
    assert [seconds for _, seconds in found] == pytest.approx([2.304e-3] * 2, rel=0.01)


@pytest.mark.parametrize(
    ("stack", "machine"), [("nemo", "dgx-h100"), ("megatron-core", "dgx-b200")]
)
def test_fused_sums_and_those_of_unmeasured_devices_go_by_bytes(stack: str, machine: str) -> None:
    assert all(seconds < 0.5e-3 for _, seconds in sums_of(stack, machine))


def test_what_another_kernel_sums_is_not_counted() -> None:
    """HybridEP's combine sums rows itself, so that the op has no bytes, whatever a sum takes."""
    kernels = load_stack("nemo+deepep").kernels(GPT_8, PLAN, load_machine("dgx-h100"))
    behaviour = replace(kernels.behaviour, counted=("sum_rows",))
    sums = [op for op in lower(GPT_8, PLAN, behaviour=behaviour).ops if op.kind == "sum_rows"]
    assert [(op.nbytes, op.attributes.get(ELEMENTS, 0)) for op in sums] == [(0, 0)] * 2
