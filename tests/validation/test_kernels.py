"""Measured kernels beside the model: what is compared with what, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.costs.analytic import matmul_s, peak_flops_per_s
from tests.blocks import BLOCK
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine
from validation.kernel_validation import KernelsError, _errors, validate_kernels
from workload.op import Op

HEADER = "device,op,M,N,K,batch,heads,seq,head_dim,seconds,backward_seconds\n"


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "kernels.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_linear_is_compared_with_the_matmul_of_its_shape(tmp_path: Path) -> None:
    machine = load_machine("dgx-a100")
    op = Op("op", "matmul", (), (), BLOCK, nbytes=2 * 3 * 4096**2, flops=2 * 4096**3,
            attributes={"form": "NN", "m": 4096, "n": 4096, "k": 4096})  # fmt: skip
    seconds = matmul_s(machine.device, peak_flops_per_s(machine, "bf16"), op)
    (group,) = validate_kernels(table(tmp_path, f"A100,linear,4096,4096,4096,,,,,{seconds / 1.1},"))
    assert (group.device, group.op, group.rows) == ("A100", "linear", 1)
    assert (group.mape, group.p95, group.bias) == pytest.approx((0.1, 0.1, 0.1))


def test_linears_of_a_gflop_and_more_are_within_a_tenth_on_each_device() -> None:
    linears = [group for group in validate_kernels() if group.op == "linear"]
    assert len(linears) == 2
    assert all(group.mape < 0.10 for group in linears)


def test_the_json_has_a_group_for_each_device_and_op(tmp_path: Path) -> None:
    path = table(tmp_path, "GH200,gelu,4096,4096,,,1,,,1e-4,1e-4", "A100,res_add,64,64,,,,,,1e-5,")
    record = json.loads(simgpt("validate", "kernels", "--data", str(path), "--json").out)
    found = [(group["device"], group["op"], group["rows"]) for group in record["groups"]]
    assert found == [("A100", "res_add", 1), ("GH200", "gelu", 1), ("GH200", "gelu backward", 1)]
    assert set(record["groups"][0]) == {"device", "op", "rows", "mape", "p95", "bias"}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("A100,linear,x,1,1,,,,,1,", ("kernels.csv", "2", "M", "x", "1")),
        (
            "A100,linear,1,1,1,,,,,0,",
            ("kernels.csv", "2", "seconds", "0", "1e-12"),
        ),
        ("A100,conv,1,1,1,,,,,1,", ("kernels.csv", "2", "op", "conv", "linear")),
    ],
)
def test_a_row_that_does_not_fit_is_refused(
    tmp_path: Path, row: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(KernelsError) as error:
        validate_kernels(table(tmp_path, row))
    assert_names(str(error.value), *named)


def test_a_file_without_rows_or_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, check=names("kernels.csv")):
        validate_kernels(table(tmp_path))
    (tmp_path / "bare.csv").write_text("device,op\n", encoding="utf-8")
    with pytest.raises(KernelsError, check=names("bare.csv", "M", "device", "op")):
        validate_kernels(tmp_path / "bare.csv")


def test_linears_interpolated_in_every_other_shape_are_within_five_percent() -> None:
    groups = {each.device[:5]: each for each in validate_kernels() if "interpolated" in each.op}
    assert set(groups) == {"A100-", "GH200"}
    assert all(each.mape <= 0.05 for each in groups.values())


def test_rows_of_an_eager_norm_count_each_of_its_kernels_and_a_fused_ones_row_one() -> None:
    """4096 x 4096 elements on an A100: 20 bytes each in 5 kernels at 0.82 of 2.039 TB/s, or 4 in
    one at a layer norm's 0.532."""
    device = load_machine("dgx-a100").device
    elements, rate = 4096 * 4096, device.memory_bytes_per_s
    eager_s = 5 * device.launch_s + 20 * elements / (0.82 * rate)
    back_s = 15 * device.launch_s + 96 * elements / (0.82 * rate)
    fused_s = device.launch_s + 4 * elements / (0.532 * rate)
    assert _predicted("RMSlayernorm") == pytest.approx((eager_s, back_s), rel=1e-9)
    assert _predicted("rmsnorm")[0] == pytest.approx(fused_s, rel=1e-9)


def _predicted(op: str) -> tuple[float, ...]:
    row = {"device": "A100", "op": op, "M": "4096", "N": "4096", "heads": "1"}
    errors = _errors({**row, "seconds": "1", "backward_seconds": "1"}, "here")
    return tuple(error + 1 for _, error in errors)


def test_eager_norms_are_within_fifteen_percent_on_both_devices() -> None:
    """The GH200's backward rows chose none of the constants."""
    found = {(each.device[:4], each.op): each.mape for each in validate_kernels()}
    norms = {key: mape for key, mape in found.items() if "eager" in key[1]}
    assert len(norms) == 4
    assert max(norms.values()) < 0.15


def test_flash_attention_is_within_nine_percent_on_each_device_and_pass() -> None:
    """Half of the rows chose the constants; the A100's own repeats differ by 4 %."""
    attentions = [group for group in validate_kernels() if "attention" in group.op]
    assert len(attentions) == 3
    assert all(group.mape < 0.09 for group in attentions)
