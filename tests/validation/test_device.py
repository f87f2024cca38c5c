"""The device validation's matrix, and the validations that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import validation
from topologies.machine_files import load_machine
from validation.device_validation import DeviceCase, DeviceRow, matrix, repredicted
from workload.lowering import lower
from workload.lowering.distinct import distinct_ops

KEPT = sorted((Path(validation.__file__).parent / "measured").glob("*.json"))


@pytest.mark.parametrize("accelerator", [True, False])
def test_the_matrix_covers_both_families_and_every_recomputation(accelerator: bool) -> None:
    cases = matrix(accelerator=accelerator)
    assert {case.family for case in cases} == {"gpt", "llama"}
    assert {case.recompute for case in cases} == {"none", "selective", "full"}
    assert len({(case.gpt.name, str(case.plan)) for case in cases}) == len(cases)
    widths = sorted({case.hidden for case in cases})
    assert widths[-1] >= 4 * widths[0]


def test_the_shapes_of_a_gpu_are_whole_tiles_of_its_kernels() -> None:
    cases = matrix(accelerator=True)
    assert {size % 128 for case in cases for size in (case.hidden, case.sequence)} == {0}


def row_of(case: DeviceCase) -> DeviceRow:
    return DeviceRow(
        case=case,
        measured_s=4.0,
        profile_s=3.0,
        ops_s=5.0,
        measured_peak_bytes=400,
        predicted_peak_bytes=300,
        kinds={"matmul": (1.0, 2.0)},
        op_seconds={},
    )


def test_errors_of_a_row_are_relative_to_what_was_measured() -> None:
    row = row_of(matrix(accelerator=False)[0])
    assert (row.profile_error, row.ops_error, row.memory_error) == (-0.25, 0.25, -0.25)
    assert row.as_dict()["kinds"] == {"matmul": {"measured_s": 1.0, "predicted_s": 2.0}}
    assert row.as_dict()["memory_error"] == -0.25


def test_kept_rows_are_predicted_from_the_times_of_their_own_ops() -> None:
    """Each op a millisecond: one rank's step takes as many as it has ops."""
    case = matrix(accelerator=False)[0]
    times = dict.fromkeys(distinct_ops(case.gpt, case.plan), 1e-3)
    row = {**row_of(case).as_dict(), "op_seconds": times}
    ((measured_s, predicted_s),) = repredicted({"rows": [row]}, load_machine("host"))
    assert measured_s == 4.0
    assert predicted_s == pytest.approx(1e-3 * len(lower(case.gpt, case.plan).ops))


def test_heads_are_64_wide_in_small_models_and_128_in_large_ones() -> None:
    widths = {case.hidden: case.gpt.width for case in matrix(accelerator=True)}
    assert (widths[1024], widths[2048], widths[12288]) == (64, 128, 128)


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_kept_validations_are_predicted_as_well_today(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    pairs = repredicted(record, load_machine("host"))
    errors = [abs(predicted / measured - 1) for measured, predicted in pairs]
    assert sum(errors) / len(errors) <= record["mape_ops"] + 0.005
