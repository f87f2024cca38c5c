"""The device validation's matrix, and the validations that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import validation
from topologies.load import load_machine
from validation.device import matrix, repredicted

KEPT = sorted((Path(validation.__file__).parent / "measured").glob("*.json"))


@pytest.mark.parametrize("accelerator", [True, False])
def test_the_matrix_covers_both_families_and_every_recomputation(accelerator: bool) -> None:
    cases = matrix(accelerator=accelerator)
    assert {case.family for case in cases} == {"gpt", "llama"}
    assert {case.recompute for case in cases} == {"none", "selective", "full"}
    assert len({(case.gpt.name, str(case.plan)) for case in cases}) == len(cases)
    widths = sorted({case.hidden for case in cases})
    assert widths[-1] >= 4 * widths[0]


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_kept_validations_are_predicted_as_well_today(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    pairs = repredicted(record, load_machine("host"))
    errors = [abs(predicted / measured - 1) for measured, predicted in pairs]
    assert sum(errors) / len(errors) <= record["mape_ops"] + 0.005
