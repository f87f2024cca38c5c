"""Under which conditions a calibration was made, and what is said of them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from executor.calibrating import calibrate as calibration
from executor.calibrating.calibrate import cached
from executor.calibrating.conditions import Conditions
from executor.launching.task_specs import Calibration
from tests.messages import assert_names
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASK = Calibration(precisions=("fp32",), quick=True)


@pytest.mark.parametrize(
    ("load", "spread", "busy", "differed"),
    [
        (0.4, 0.05, False, []),
        (1.5, 0.15, False, []),
        (8.0, 0.05, True, []),
        (8.0, 0.4, True, ["40%"]),
    ],
)
def test_a_calibration_says_its_age_its_load_and_what_is_wrong_with_it(
    load: float, spread: float, busy: bool, differed: list[str]
) -> None:
    """From three quarters of a process for each core on a machine is busy."""
    under = Conditions(AT, load, 2, spread)
    said = under.words(AT + timedelta(hours=3, minutes=59))
    assert under.is_busy == busy
    assert_names(said, "3 hours", f"load {load}", "2 cores", *differed)
    assert ("%" in said) == bool(differed)


def test_conditions_are_kept_in_a_machine_s_document() -> None:
    under = Conditions(AT, 0.25, 2, 0.125)
    assert Conditions.of({"profile": {"provenance": under.as_provenance()}}) == under


@pytest.mark.parametrize("document", [None, {}, {"profile": {"provenance": {"at": "yesterday"}}}])
def test_a_document_without_conditions_has_none(document: object) -> None:
    assert Conditions.of(document) is None


def test_the_load_of_this_moment_is_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (8.0, 1.0, 1.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    now = Conditions.now()
    assert now.is_busy
    assert_names(now.load_words, "8.0", "2 cores")


def test_a_kept_calibration_is_announced_and_made_again_on_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    made: list[int] = []

    def measure(*_: object, **__: object) -> dict[str, object]:
        made.append(1)
        machine = machine_to_dict(load_machine("perlmutter"))
        return machine | {"profile": {"provenance": Conditions.now().as_provenance()}}

    monkeypatch.setattr(calibration, "calibrate", measure)
    for again, times in ((False, 1), (False, 1), (True, 2)):
        said: list[str] = []
        cached(TASK, 1, pytest.fail, announce=said.append, again=again)
        assert len(made) == times
        assert_names(said[-1], "calibration", "load")
