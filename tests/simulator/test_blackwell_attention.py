"""Blackwell's attention against shapes that NVIDIA measured, and the fit of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import attention_s, width_share
from simulator.stacks import load_stack
from tools.fit_cudnn_attention import PASSES, SOFTMAX, error, fit, fit_share, measured, op_of
from topologies.hardware.attention import Attention, Pass, Shape
from topologies.machine_files import build_machine
from topologies.parts import Parts
from workload.gpt import find_model
from workload.plan import Plan

SHAPES = [(length, heads, width, window) for length in (4096, 32768) for heads in (16, 64, 128)
          for width, window in ((128, 0), (192, 0), (64, 512))]  # fmt: skip


def _made(values: tuple[float, float, float, float]) -> Attention:
    own = Pass(values[1], values[2], 1.0, values[3])
    return Attention(values[0], values[0], Shape(148, 128, own, own))


@pytest.mark.parametrize("way", PASSES)
def test_the_fit_finds_the_constants_that_made_a_table(way: str) -> None:
    machine, made = build_machine(Parts("gb200", 1)), (0.7, 90.0, 0.8, 12.0)
    device, peak = replace(machine.device, attention=_made(made)), 2500e12
    ops = [
        op_of(PASSES[way], 1, length, heads, width, 128 if width == 192 else width, window)
        for length, heads, width, window in SHAPES
    ]
    rows = [(op, attention_s(device, peak, op)) for op in ops]
    assert error(machine, (0.6, 60.0, 0.8, 10.0), rows) > 0.05
    best, values = fit(machine, rows)
    assert best < 1e-3
    assert tuple(values) == pytest.approx(made, rel=0.02)
    best, values = fit(machine, rows, softmax=90.0)
    assert tuple(values) == pytest.approx(made, rel=0.02)
    assert fit_share(machine, rows, made[1:]) == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("gpu", ["GB200", "GB300"])
@pytest.mark.parametrize("way", PASSES)
def test_a_device_takes_what_nvidia_measured(gpu: str, way: str) -> None:
    """All shapes, half of which the fit never saw, and forward none of the windows."""
    machine = build_machine(Parts(gpu.lower(), 1))
    peak = peak_flops_per_s(machine, "bf16")
    for op, seconds in measured(gpu, way):
        predicted = attention_s(machine.device, peak, op)
        if way == "forward" and "window" in op.attributes:
            assert 0.3 < predicted / seconds < 1.1
        else:
            long = op.attributes["sequence"] >= 16384
            assert predicted == pytest.approx(seconds, rel=0.2 if long else 0.1)


def test_a_table_counts_its_heads_of_all_sequences() -> None:
    """cudnn_attention.csv: 2 sequences of 4,096 with 64 heads of 128 columns in 0.391 ms."""
    op, seconds = next(
        (op, seconds)
        for op, seconds in measured("GB200", "forward")
        if op.attributes["sequence"] == 4096 and op.attributes["width"] == 128 and seconds > 3e-4
    )
    assert (op.flops, seconds) == (4 * 2 * 64 * 4096**2 * 128, 0.391e-3)


def test_all_of_blackwell_has_the_shares_of_the_measured_devices_by_their_power() -> None:
    for name, share in (("b200", 0.777), ("b300", 0.86), ("gb300", 0.838), ("gb200", 0.744)):
        attention = build_machine(Parts(name, 1)).device.attention
        assert attention.forward == share
        assert attention.shape is not None
        assert (attention.shape.units, attention.shape.rows) == (148, 128)


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
def test_narrow_heads_of_blackwell_wait_for_their_softmax(gpu: str) -> None:
    """Dao-AILab/flash-attention, pull 2605: forward without a mask, 32 sequences of 1,024 and 2,048
    columns of heads: 980 and 1,428 TFLOP/s."""
    shape = build_machine(Parts(gpu, 1)).device.attention.shape
    assert shape is not None
    assert shape.forward.softmax == pytest.approx(SOFTMAX, rel=0.005)
    assert width_share(shape.forward, 64) == pytest.approx(980 / 1428, rel=0.005)
    assert width_share(shape.backward, 64) < 0.8


def test_windows_of_a_gb200_take_as_long_backward_as_cudnn_took() -> None:
    """128 heads of 64 columns and 4,096 tokens with a window of 1,024: 0.487 ms."""
    machine = build_machine(Parts("gb200", 1))
    op = op_of("attention_grad", 1, 4096, 128, 64, 64, 1024)
    peak = peak_flops_per_s(machine, "bf16")
    assert attention_s(machine.device, peak, op) == pytest.approx(487e-6, rel=0.05)


def test_stacks_of_2025_have_its_attention() -> None:
    gpt, plan = find_model("llama-3.1-8b"), Plan(dp=8, batch=8, mbs=1)
    of = {gpu: build_machine(Parts(gpu, 1)) for gpu in ("b200", "gb200", "gb300")}
    old, new = load_stack("nemo+unfused"), load_stack("nemo")
    assert old.kernels(gpt, plan, of["b200"]).attention == (0.641, 0.511)
    assert old.kernels(gpt, plan, of["gb200"]).attention == (0.613, 0.489)
    assert new.kernels(gpt, plan, of["gb200"]).attention is None
    assert np.isclose(0.641 / 0.613, 0.777 / 0.744, rtol=0.005)
