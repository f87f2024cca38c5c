"""AMD's attention and norms against kernels that were measured, and the fit of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.costs.analytic import AnalyticCosts, memory_bound_s, peak_flops_per_s
from simulator.costs.attention import attention_s
from simulator.stacks import EXECUTOR, load_stack
from tools.fit_cudnn_attention import op_of
from tools.fit_mi300x_attention import SHAPE, error, fit, mi300x, rows_of
from topologies.machine_files import build_machine
from topologies.parts import Parts
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import Op
from workload.op_attributes import Attributes
from workload.plan_text import parse_plan

MI300X = [
    (1, 8192, 64, 128, 128, 2.41, 7.54),
    (4, 8192, 128, 128, 128, 18.16, 57.76),
    (2, 4096, 32, 128, 128, 0.63, 2.28),
    (2, 4096, 64, 192, 128, None, 17.04),
]
TUNED = (512, 8192)
MASKED = [(1, 4096, 32, 128), (2, 4096, 64, 192), (4, 8192, 16, 64), (1, 8192, 64, 192)]


def seconds_of(gpu: str, kind: str, *shape: int) -> float:
    machine = build_machine(Parts(gpu, 1))
    return attention_s(machine.device, peak_flops_per_s(machine, "bf16"), op_of(kind, *shape))


@pytest.mark.parametrize(("batch", "length", "heads", "width", "values", "there", "back"), MI300X)
def test_attention_of_an_mi300x_takes_what_was_measured(
    batch: int, length: int, heads: int, width: int, values: int, there: float | None, back: float
) -> None:
    """AMD-AGI/Primus-Turbo@221d75f, output/baseline_attention.csv, under a mask."""
    shape = (batch, length, heads, width, values)
    if there is not None:
        assert seconds_of("mi300x", "attention", *shape) == pytest.approx(there / 1e3, rel=0.08)
    assert seconds_of("mi300x", "attention_grad", *shape) == pytest.approx(back / 1e3, rel=0.08)


def test_attention_of_an_mi355x_takes_what_was_measured() -> None:
    """AMD-AGI/Primus@7196acd, profile/profile_analysis.md: DeepSeek-V3 in training; ROCm/aiter
    pulls 815 and 3390, kernels alone."""
    assert seconds_of("mi355x", "attention", 2, 4096, 128, 192, 128) == pytest.approx(
        1278e-6, rel=0.01
    )
    assert seconds_of("mi355x", "attention_grad", 2, 4096, 128, 192, 128) == pytest.approx(
        5321e-6, rel=0.01
    )
    assert seconds_of("mi355x", "attention_grad", 8, 8192, 64, 128, 128) == pytest.approx(
        20.893e-3, rel=0.01
    )
    rates = [
        2 * 4 * 64 * 8192**2 * (width + 128) / 2 / seconds
        for width in (128, 192)
        for seconds in [seconds_of("mi355x", "attention", 4, 8192, 64, width, 128)]
    ]
    assert rates[1] / rates[0] == pytest.approx(1259 / 1280, rel=0.005)


def test_norms_gates_and_sums_of_an_mi355x_take_what_was_measured() -> None:
    """The same profile: 8,192 rows of 7,168, which Transformer Engine normalises in 97 us, in 987
    and 967 us backward; the gates of 65,536 x 2,048 in 121 us, in 590 us backward; the gradients
    of 32 experts' weights added to their sums in four kernels of 2,647 us."""
    device, numbers = build_machine(Parts("mi355x", 1)).device, 8192 * 7168
    how: Attributes = {"columns": 7168}
    forward, backward = (Op("norm", kind, (), (), nbytes=nbytes * numbers, attributes=how)
                         for kind, nbytes in (("rmsnorm", 4), ("rmsnorm_grad", 6)))  # fmt: skip
    tuned = Op("norm", "rmsnorm_grad", (), (), nbytes=6 * numbers, attributes={"columns": 8192})
    assert memory_bound_s(device, tuned, TUNED) < 110e-6
    assert memory_bound_s(device, forward, TUNED) == pytest.approx(97e-6, rel=0.01)
    assert memory_bound_s(device, backward, TUNED) == pytest.approx(977e-6, rel=0.01)
    gates = 65536 * 2048
    gate = Op("gate", "swiglu", (), (), nbytes=6 * gates)
    assert memory_bound_s(device, gate) == pytest.approx(121e-6, rel=0.1)
    gate = Op("gate", "swiglu_grad", (), (), nbytes=10 * gates, launches=2)
    assert memory_bound_s(device, gate) == pytest.approx(590e-6, rel=0.01)
    sums = Op("sums", "accumulate", (), (), nbytes=10 * 32 * 3 * 7168 * 2048, launches=4)
    assert memory_bound_s(device, sums) == pytest.approx(2647e-6, rel=0.01)


def test_norms_are_general_ones_under_stacks_that_have_others_for_some_widths() -> None:
    """Megatron's have them by Transformer Engine; simgpt's own executor has one norm."""
    gpt, plan = find_model("gpt-5b"), parse_plan("dp=8")
    machine = build_machine(Parts("mi355x", 1))
    wide = Op("norm", "rmsnorm_grad", (), (), nbytes=6 * 8192 * 7168, attributes={"columns": 7168})
    primus, own = (stack.kernels(gpt, plan, machine) for stack in (load_stack("primus"), EXECUTOR))
    assert AnalyticCosts(machine, kernels=primus).seconds(wide) * primus.pace == pytest.approx(
        977e-6, rel=0.01
    )
    assert AnalyticCosts(machine, kernels=own).seconds(wide) < 110e-6


def test_the_fit_reads_masked_rows_and_finds_what_made_them(tmp_path: Path) -> None:
    machine, made = mi300x(), np.array([0.4, 20.0, 0.8, 3.0])
    peak, values = peak_flops_per_s(machine, "bf16"), machine.device.attention
    assert values.shape is not None
    lines = ["".join(f"{name}," for name in SHAPE) + "Causal,Forward Time (ms),Backward Time (ms)"]
    for batch, length, heads, width in MASKED:
        op = op_of("attention", batch, length, heads, width, min(width, 128))
        took = attention_s(machine.device, peak, op) * 1e3
        text = f"{batch},{length},{heads},{width},{min(width, 128)}"
        lines += [f"{text},True,{took!r},", f"{text},False,1.0,1.0"]
    (table := tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    rows = rows_of(table, "attention")
    assert len(rows) == len(MASKED)
    assert rows_of(table, "attention_grad") == []
    own = values.shape.forward
    best = np.array([values.forward, own.softmax, own.wide, own.memory])
    assert error(machine, 128, best, rows) < 1e-9
    found, _ = fit(machine, 128, rows)
    assert found < 0.02 < error(machine, 128, made, rows)


def test_a_norm_says_its_columns() -> None:
    """Of the residual stream of DeepSeek-V2 and of the latents of its keys and queries."""
    gpt = replace(find_model("deepseek-v2"), layers=2)
    ops = lower(gpt, parse_plan("batch=1,mbs=1")).ops
    found = {(op.kind, op.attributes["columns"]) for op in ops if op.kind.startswith("rmsnorm")}
    kinds = ("rmsnorm", "rmsnorm_grad")
    assert found == {(kind, columns) for kind in kinds for columns in (512, 1536, 5120)}
