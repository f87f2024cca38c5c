"""Experts under torchtitan: rows are weighed in fp32 behind them, and hosts issue their ops."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from topologies.machine_files import load_machine
from workload.gpt import GPT
from workload.lowering import lower

ROWS, TOKENS, WIDE = 2 * 256, 256, 128
SIZES: dict[str, Any] = {
    **{"layers": 1, "hidden": WIDE, "heads": 4, "ffn": 256, "sequence": TOKENS, "vocab": 512},
}
EXPERTS: dict[str, Any] = {
    "experts": 8,
    "topk": 2,
    "expert_ffn": 64,
    "activation": "swiglu",
    "norm": "rmsnorm",
}


def job(**model: Any) -> Job:
    gpt = GPT.of(name="small", **SIZES, **model)
    words = "dp=4,mbs=1,ep=4" if model else "dp=4,mbs=1"
    return job_of(gpt, words, load_stack("torchtitan"), batch=4)


def test_what_comes_back_is_written_cast_multiplied_and_summed_in_fp32() -> None:
    """Bytes beside those of the kernels that move rows; a token is sent to two experts."""
    asked = job(**EXPERTS)
    behaviour = asked.stack.kernels(asked.gpt, asked.plan, load_machine("dgx-h100")).behaviour
    moved = {op.label: op.nbytes for op in lower(asked.gpt, asked.plan, behaviour=behaviour).ops}
    copies = {name: count for name, count in moved.items() if name.endswith(".copies")}
    assert copies["combine.sum_rows.copies"] == WIDE * (14 * ROWS + 8 * TOKENS)
    assert copies["combine.grad.take_rows.copies"] == WIDE * (10 * TOKENS + 14 * ROWS)
    assert copies["dispatch.sort.sort_rows.copies"] == WIDE * 4 * ROWS


def test_gradients_of_rows_taken_by_number_wait_for_sums_and_products_in_fp32() -> None:
    """On a B200 196,608 rows of 2,048 columns take 1.6 ms besides a copy, products of 16 x 4,096
    tokens for 8 experts 6 to 9 ms (`simulator/stacks/torchtitan.toml`)."""
    sizes = SIZES | {"hidden": 2048, "heads": 16, "sequence": 4096}
    gpt = GPT.of(name="rows", **sizes, **EXPERTS | {"topk": 8, "experts": 64})
    asked = job_of(gpt, "dp=8,mbs=2,ep=8", load_stack("torchtitan"), batch=16)
    machine = load_machine("dgx-b200")
    kernels = asked.stack.kernels(gpt, asked.plan, machine)
    cost = AnalyticCosts(machine, kernels=kernels)
    ops = {op.label: op for op in lower(gpt, asked.plan, behaviour=kernels.behaviour).ops}
    rows = 2 * 4096 * 8
    taken = [
        cost.seconds(ops[f"dispatch.grad.{label}"]) for label in ("unsort.unsort_rows", "sum_rows")
    ]
    assert taken == pytest.approx([1.62e-3 * rows / 196_608] * 2, rel=0.03)
    assert 6e-3 < cost.seconds(ops["combine.grad.take_rows.copies"]) * 16 / 2 < 9e-3
    assert cost.seconds(ops["combine.sum_rows"]) < 0.3e-3  # forward none is


@pytest.mark.parametrize(("model", "bound"), [(EXPERTS, True), ({}, False)])
def test_a_host_binds_models_with_experts_alone(model: dict[str, Any], bound: bool) -> None:
    asked = job(**model)
    kernels = asked.stack.kernels(asked.gpt, asked.plan, load_machine("jupiter-booster"))
    assert (kernels.host_s > 0) is bound
