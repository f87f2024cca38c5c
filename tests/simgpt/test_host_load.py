"""What a run says of a host that others disturbed, or that changed since its calibration."""

from __future__ import annotations

import os

import pytest

from simgpt.running.host_load import warn_of_measured
from simgpt.running.trained import summary
from tests.messages import assert_names


def said(
    capsys: pytest.CaptureFixture[str], *, calibrated: bool = True, **changes: float | None
) -> str:
    """What is said on stderr of a run of two ranks that was predicted at 0.1 s."""
    record = {"waited_share": 0.0, "ranks": 2, "step_s": 0.1, "predicted_step_s": 0.1} | changes
    warn_of_measured(record, calibrated=calibrated)
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.4, 1.0, 1.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_steps_that_other_processes_made_longer_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = said(capsys, waited_share=0.374, step_s=0.3).splitlines()
    assert_names(line, "37%", "1.4", "2")


@pytest.mark.parametrize(("step_s", "times"), [(0.16, "1.6"), (0.05, "0.5")])
def test_a_calibration_that_does_not_describe_the_machine_is_named(
    capsys: pytest.CaptureFixture[str], step_s: float, times: str
) -> None:
    (line,) = said(capsys, step_s=step_s).splitlines()
    assert_names(line, times, "--recalibrate")


@pytest.mark.parametrize("step_s", [0.07, 0.1, 0.14])
def test_a_quiet_run_near_its_prediction_says_nothing(
    capsys: pytest.CaptureFixture[str], step_s: float
) -> None:
    assert said(capsys, waited_share=0.1, step_s=step_s) == ""


def test_more_ranks_than_cores_wait_for_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, waited_share=0.5, ranks=4) == ""


def test_a_machine_file_or_no_prediction_has_no_calibration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said(capsys, step_s=0.3, calibrated=False) == ""
    assert said(capsys, step_s=0.3, predicted_step_s=None) == ""


@pytest.mark.parametrize(
    ("waited", "ranks", "error"),
    [(0.374, 2, ""), (0.1, 2, "-50.0 %"), (0.374, 4, "-50.0 %")],
)
def test_steps_that_others_made_longer_are_compared_with_no_prediction(
    waited: float, ranks: int, error: str
) -> None:
    record = {
        "model": "tiny",
        "plan_string": "dp=2",
        "waited_share": waited,
        "ranks": ranks,
        "step_s": 0.2,
        "step_p10_s": 0.2,
        "step_p90_s": 0.2,
        "predicted_step_s": 0.1,
        "peak_bytes": 100,
        "predicted_peak_bytes": 110,
    }
    lines = summary(record, None).splitlines()
    (step,) = [line for line in lines if line.startswith("step (median)")]
    assert ("%" in step) == bool(error)
    assert step.endswith(error)
    assert lines[-1].endswith("+10.0 %")  # memory does not depend on the load
