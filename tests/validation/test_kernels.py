"""Measured kernels beside the model: what is compared with what, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.costs.analytic import matmul_s, peak_flops_per_s
from tests.blocks import BLOCK
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine
from validation.kernel_validation import KernelsError, validate_kernels
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
    ("row", "sentence"),
    [
        ("A100,linear,x,1,1,,,,,1,", "kernels.csv, line 2: M = 'x' must be a whole number of 1 "),
        ("A100,linear,1,1,1,,,,,0,", "kernels.csv, line 2: seconds = '0' must be seconds above 0"),
        ("A100,conv,1,1,1,,,,,1,", "kernels.csv, line 2: op = 'conv' is not known; known: linear"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(tmp_path: Path, row: str, sentence: str) -> None:
    with pytest.raises(KernelsError) as error:
        validate_kernels(table(tmp_path, row))
    assert str(error.value).startswith(sentence)


def test_a_file_without_rows_or_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, match="holds no rows"):
        validate_kernels(table(tmp_path))
    (tmp_path / "bare.csv").write_text("device,op\n", encoding="utf-8")
    with pytest.raises(KernelsError, match=r"bare.csv has no column M; it needs device, op"):
        validate_kernels(tmp_path / "bare.csv")


def test_linears_interpolated_in_every_other_shape_are_within_five_percent() -> None:
    groups = {each.device[:5]: each for each in validate_kernels() if "interpolated" in each.op}
    assert set(groups) == {"A100-", "GH200"}
    assert all(each.mape <= 0.05 for each in groups.values())
