"""Blackwell's attention against shapes that were measured on a B200, and the fit of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit_b200_attention import error, fit, fitted, op_of, rows_of
from benchmarks.fit_matmuls import b200
from benchmarks.narrow_heads import fitted as fitted_tiles
from benchmarks.narrow_heads import measured, softmax_columns, wide
from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import attention_s, width_share
from topologies.build import Parts, build_machine

KEY = "batch=1, seq_len={}, head_num={}, kv_head_num=8, qk_head_dim={}, v_head_dim=128, "
SHAPES = [(length, heads, width) for length in (4096, 32768) for heads in (16, 64, 128)
          for width in (128, 192)]  # fmt: skip


def written(at: Path, rows: dict[str, float], key: str = "sdp_fwd") -> Path:
    """A system file with these efficiencies of a pass."""
    table = {key: {"accurate_efficient_factor": rows}}
    at.write_text(json.dumps({"accelerator": {"op": table}}))
    return at


def test_both_layouts_of_a_shape_are_one_of_their_mean_time(tmp_path: Path) -> None:
    key = KEY.format(4096, 64, 128)
    rows = {key + "qkv_contiguous=True": 0.5, key + "qkv_contiguous=False": 1.0}
    ((op, seconds),) = rows_of(written(tmp_path / "b200.json", rows), "attention")
    assert op.flops == 4 * 64 * 4096**2 * 128
    assert seconds == pytest.approx(1.5 * op.flops / 2250e12)
    ((op, seconds),) = rows_of(written(tmp_path / "b.json", rows, "sdp_bwd"), "attention_grad")
    assert op.flops == 8 * 64 * 4096**2 * 128
    assert seconds == pytest.approx(1.5 * 10 * 64 * 4096**2 * 128 / 2250e12)


def test_the_fit_finds_the_constants_that_made_a_table() -> None:
    machine, made = b200(), (0.6, 0.8, 12.0)
    of = fitted(machine, "attention", 128, made)
    ops = [op_of("attention", 1, length, heads, width, 128) for length, heads, width in SHAPES]
    peak = peak_flops_per_s(machine, "bf16")
    rows = [(op, attention_s(of.device, peak, op)) for op in ops]
    assert error(machine, rows) > 0.05
    best, values = fit(machine, "attention", 128, rows)
    assert best < 1e-3
    assert tuple(values) == pytest.approx(made, rel=0.01)


@pytest.mark.parametrize("kind, flops, long, latent", [
    ("attention", 2, 1.2018, 0.8122), ("attention_grad", 5, 0.9549, 0.6488)])  # fmt: skip
def test_long_sequences_on_a_b200_take_what_the_source_measured(
    kind: str, flops: int, long: float, latent: float
) -> None:
    """MooreThreads/SimuMax@4dcaae5: 32,768 tokens under a mask, 8 heads of 128 columns and 64 of
    192 and 128, as shares of 2,250 TFLOP/s on the whole square's FLOPs."""
    machine = b200()
    for share, heads, width in ((long, 8, 128), (latent, 64, 192)):
        seconds = flops * heads * 32768**2 * (width + 128) / (share * 2250e12)
        own = attention_s(machine.device, 2250e12, op_of(kind, 1, 32768, heads, width, 128))
        assert own == pytest.approx(seconds, rel=0.25 if kind == "attention" else 0.1)


def test_all_of_blackwell_has_the_shares_of_the_b200_by_its_power_or_by_its_steps() -> None:
    for name, share in (("b200", 0.508), ("b300", 0.675), ("gb300", 0.658), ("gb200", 0.486)):
        attention = build_machine(Parts(name, 1)).device.attention
        assert attention.forward == share
        assert attention.shape is not None
        assert (attention.shape.units, attention.shape.rows) == (148, 128)


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
def test_narrow_heads_of_blackwell_wait_for_their_softmax(gpu: str) -> None:
    """Dao-AILab/flash-attention, pull 2605: forward without a mask, 32 sequences of 1,024 and 2,048
    columns of heads: 980 and 1,428 TFLOP/s. Latent attention stays at 0.828 of heads of 128."""
    shape = build_machine(Parts(gpu, 1)).device.attention.shape
    assert shape is not None
    assert width_share(shape.forward, 64) == pytest.approx(980 / 1428, rel=0.005)
    assert width_share(shape.forward, 160) == pytest.approx(0.828, rel=0.005)
    assert width_share(shape.backward, 160) == pytest.approx(0.742, rel=0.005)


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
def test_narrow_heads_of_blackwell_take_as_long_backward_as_cudnn_took_with_windows(
    gpu: str,
) -> None:
    """A tile with heads of 64 columns takes 0.77 of one with 128, of half the FLOPs; both widths
    and three windows are met by two numbers each."""
    shape = build_machine(Parts(gpu, 1)).device.attention.shape
    assert shape is not None
    assert shape.backward.softmax == pytest.approx(softmax_columns(), rel=0.005)
    assert shape.backward.wide == pytest.approx(wide(shape.backward.softmax, 0.742), rel=0.005)
    assert width_share(shape.backward, 64) == pytest.approx(13.39 / 2 / 10.34, rel=0.005)
    for row in measured():
        block_ns, tile_ns = fitted_tiles(row.width)
        taken_ns = row.backward_ms * 1e6 / row.blocks
        assert block_ns + row.tiles * tile_ns == pytest.approx(taken_ns, rel=0.06)


def test_windows_of_a_gb200_take_no_longer_backward_than_cudnn_took() -> None:
    """128 heads of 64 columns and 4,096 tokens with a window of 1,024: 0.487 ms (benchmarks/
    narrow_heads.csv)."""
    machine = build_machine(Parts("gb200", 1))
    whole = op_of("attention_grad", 1, 4096, 128, 64, 64)
    windowed = replace(
        whole, flops=whole.flops // 4, attributes={**whole.attributes, "window": 1024}
    )
    peak = peak_flops_per_s(machine, "bf16")
    assert attention_s(machine.device, peak, windowed) == pytest.approx(487e-6, rel=0.05)
