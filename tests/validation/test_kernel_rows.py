"""Measured kernels: which work of ours stands beside a row, and what a group's figures mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.costs.analytic import matmul_s, memory_bound_s, peak_flops_per_s
from simulator.costs.attention import attention_s
from simulator.costs.published import half_matmul
from tests.blocks import BLOCK
from tests.validation.test_kernels import table
from topologies.machine_files import load_machine
from validation.kernel_validation import (
    KernelGroup,
    KernelsError,
    interpolated_errors,
    validate_kernels,
)
from workload.op import Op
from workload.op_attributes import Attributes

MACHINE = load_machine("dgx-a100")
DEVICE, PEAK = MACHINE.device, peak_flops_per_s(MACHINE, "bf16")


def matmul(m: int, n: int, k: int) -> float:
    return matmul_s(DEVICE, PEAK, half_matmul(m, n, k))


def moved(kind: str, nbytes: int) -> float:
    return memory_bound_s(DEVICE, Op(kind, kind, (), (), BLOCK, nbytes=nbytes))


def groups(tmp_path: Path, *rows: str) -> dict[str, KernelGroup]:
    return {each.op: each for each in validate_kernels(table(tmp_path, *rows))}


def test_the_figures_of_a_group_are_of_errors_with_and_without_their_sign(tmp_path: Path) -> None:
    """Nineteen rows that are predicted 10 % too fast, and one that takes a third as long."""
    seconds = matmul(4096, 4096, 4096)
    row = "A100,linear,4096,4096,4096,,,,,{},"
    rows = [row.format(seconds / 0.9)] * 19 + [row.format(seconds / 3)]
    found = groups(tmp_path, *rows)["linear"]
    assert found.mape == pytest.approx((19 * 0.1 + 2.0) / 20)
    assert found.bias == pytest.approx((-19 * 0.1 + 2.0) / 20)
    assert found.p95 == pytest.approx(0.1)
    assert groups(tmp_path, *rows, rows[-1])["linear"].p95 == pytest.approx(2.0)


def test_a_linears_backward_pass_is_the_gradients_of_its_input_and_its_weight(
    tmp_path: Path,
) -> None:
    """Of m x k times k x n: m x n times n x k, and k x m times m x n."""
    m, n, k = 8192, 1024, 4096
    forward, backward = matmul(m, n, k), matmul(m, k, n) + matmul(k, n, m)
    found = groups(tmp_path, f"A100,linear,{m},{n},{k},,,,,{forward},{backward}")
    assert found["linear"].mape == pytest.approx(0.0, abs=1e-12)
    assert found["linear backward"].mape == pytest.approx(0.0, abs=1e-12)
    assert backward != pytest.approx(2 * forward, rel=1e-2)


def test_linears_are_small_below_a_gflop_and_no_further(tmp_path: Path) -> None:
    """2 * 500 * 1000 * 1000 is a GFLOP, and 2 * 499 * 1000 * 1000 is not."""
    rows = [f"A100,linear,{m},1000,1000,,,,,1e-3," for m in (499, 500, 4000)]
    found = groups(tmp_path, *rows)
    assert (found["linear"].rows, found["linear below 1 GFLOP"].rows) == (2, 1)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "5e-324", "1e-13", "86400", "1e300"])
def test_times_that_no_kernel_takes_are_refused_with_their_line(
    seconds: str, tmp_path: Path
) -> None:
    with pytest.raises(KernelsError, match="line 2: seconds"):
        groups(tmp_path, f"A100,linear,1024,1024,1024,,,,,{seconds},")


def test_attention_is_predicted_without_a_mask(tmp_path: Path) -> None:
    """Forward two matmuls of b h s s w, of which the causal op of as many FLOPs would do half."""
    batch, heads, seq, width = 2, 16, 4096, 128
    square = 2 * 2 * batch * heads * seq * seq * width
    rates = (DEVICE.attention.forward, DEVICE.attention.backward)
    how: Attributes = {"width": width, "sequence": seq}
    op = Op("a", "attention", (), (), BLOCK, flops=square, attributes=how)
    seconds = attention_s(DEVICE, PEAK, op, causal=False)
    waves = 10 / (32 * 32 / 108)  # 32 heads of 32 blocks
    shape = DEVICE.attention.shape
    assert shape is not None
    rate = DEVICE.memory_efficiency * DEVICE.memory_bytes_per_s
    moved_s = shape.forward.memory * batch * heads * seq * width / rate
    expected = waves * square / (PEAK * rates[0]) + moved_s
    assert seconds - DEVICE.launch_s == pytest.approx(expected)
    found = groups(tmp_path, f"A100,flash_attention,,,,{batch},{heads},{seq},{width},{seconds},")
    assert found["flash_attention"].mape == pytest.approx(0.0, abs=1e-12)


def test_gelu_works_on_a_ranks_part_of_four_times_the_hidden_width(tmp_path: Path) -> None:
    """heads is how many ranks share the 4 * 4096 columns there, which are read and written."""
    seconds = moved("gelu", 2 * 2 * 2048 * 4 * 4096 // 8)
    found = groups(tmp_path, f"A100,gelu,2048,4096,,,8,,,{seconds},")
    assert found["gelu"].mape == pytest.approx(0.0, abs=1e-12)


def test_an_addition_reads_two_and_writes_one_and_a_norm_reads_one(tmp_path: Path) -> None:
    add, norm = (moved(kind, n * 2 * 4096**2) for kind, n in (("add", 3), ("layernorm", 2)))
    shape = "4096,4096,,,1,,"
    found = groups(tmp_path, f"A100,res_add,{shape},{add},", f"A100,layernorm,{shape},{norm},")
    assert [each.mape for each in found.values()] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_a_shape_is_interpolated_without_its_own_measurement() -> None:
    """Every other shape takes twice what the model says: each is predicted by the others' factor,
    so half of them as twice and half of them as half of what was measured."""
    shapes = {
        (m, 4096, 4096): [matmul(m, 4096, 4096) * (2 if number % 2 else 1)]
        for number, m in enumerate((4096, 4160, 4224, 4288))
    }
    errors = interpolated_errors(MACHINE, shapes)
    assert sorted(errors) == pytest.approx([-0.5, -0.5, 1.0, 1.0])
