"""`simgpt calibrate`: a measurement that other processes disturbed is refused at first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from executor.calibrating import calibrate
from executor.calibrating.conditions import Conditions
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.machine import machine_to_dict
from topologies.machine_files import with_settings


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the calibration that is made here says of its conditions."""
    conditions = Conditions.now(spread=0.4).as_provenance() | {"load": "8.00", "cores": "2"}
    machine: dict[str, Any] = machine_to_dict(with_settings("frontier", {}))
    machine["profile"] = {"provenance": conditions}
    monkeypatch.setattr(calibrate, "calibrate", lambda *_, **__: machine)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return conditions


FOUND = ("40%", "15%", "8.0", "2")  # the spread, what is usual, and the load on how many cores


def test_a_disturbed_machine_is_refused(measured: dict[str, str], tmp_path: Path) -> None:
    said = simgpt("calibrate", "--device", "cpu", "-o", str(tmp_path / "host.json"))
    assert said.status == 5
    assert_names(said.sentence, *FOUND, "--disturbed")
    assert not list(tmp_path.iterdir())


def test_a_disturbed_measurement_is_kept_on_demand(
    measured: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "host.json"
    said = simgpt("calibrate", "--device", "cpu", "--disturbed", "-o", str(path))
    assert (said.status, path.exists()) == (0, True)
    assert_names(said.err.splitlines()[0], *FOUND, "--disturbed")


def test_a_quiet_machine_is_measured_without_a_word(
    measured: dict[str, str], tmp_path: Path
) -> None:
    measured["spread"] = "0.1"
    said = simgpt("calibrate", "--device", "cpu", "-o", str(tmp_path / "host.json"))
    assert (said.status, said.err) == (0, "")


def test_a_busy_host_is_named_before_it_is_measured(
    measured: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured["spread"] = "0.1"
    monkeypatch.setattr(os, "getloadavg", lambda: (8.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    said = simgpt("calibrate", "--device", "cpu", "-o", str(tmp_path / "host.json"))
    assert said.status == 0
    assert_names(said.err, "8.0", "2")
    assert said.err.count("\n") == 1
