"""When a validation fails: the tolerance bounds the mean of errors in which signs do not cancel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgpt.commands.validate.device import _record
from simulator.engine import core
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt
from tests.validation.test_device import row_of
from validation import host_validation as host
from validation.device_validation import matrix
from validation.network_tables import read_tables
from workload.plan_text import parse_plan


@pytest.mark.parametrize(("tolerance", "status"), [("0.6", 0), ("0.4", 4)])
def test_the_host_validation_fails_above_its_tolerance(
    tolerance: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as long again and half as long: 50 % on average."""
    plan = parse_plan("dp=1", batch=1)
    rows = [host.HostRow("tiny-1m", plan, predicted_s, 1.0, 1, 1) for predicted_s in (1.5, 0.5)]
    monkeypatch.setattr(host, "validate_host", lambda *_, **__: iter(rows))
    monkeypatch.setattr("executor.launching.launch.require_torch", lambda: None)
    said = simgpt("validate", "host", "-m", "host", "--tolerance", tolerance, "--json")
    assert said.status == status
    assert json.loads(said.out)["mape"] == pytest.approx(0.5)
    assert ("40.0 %" in said.err) == (status == 4)


def compared(path: Path, factor: float, tolerance: str) -> Said:
    """One shipped table whose times are changed by a factor, as if measured so."""
    name = "perlmutter_all_gather_pm_all_gather_2_nccl"
    table: dict[str, Any] = read_tables()[name]
    at = table["columns"].index("seconds")
    rows = [[*row[:at], factor * row[at], *row[at + 1 :]] for row in table["rows"]]
    path.write_text(json.dumps({name: {**table, "rows": rows}}), encoding="utf-8")
    return simgpt("validate", "network", "--data", str(path), "--tolerance", tolerance)


@pytest.mark.parametrize(("factor", "status"), [(0.5, 4), (1.0, 0), (2.0, 4)])
def test_a_table_fails_whether_its_collectives_are_predicted_too_slow_or_too_fast(
    factor: float, status: int, tmp_path: Path
) -> None:
    said = compared(tmp_path / "t.json", factor, "0.3")
    assert said.status == status
    if status:
        assert_names(said.err, "1", "30.0 %")


def test_the_device_validation_is_held_to_the_prediction_from_measured_ops() -> None:
    """Steps of 4 s, of which ops one by one make 5; tables make 3 of one, and 4 of the other."""
    row = row_of(matrix(accelerator=False)[0])
    other = replace(row, profile_s=4.0)
    record = _record([row, other, (row.case, "needs more memory")], {}, 1)
    assert (record["mape_ops"], record["mape_profile"]) == (0.25, 0.125)
    assert record["left_out"] == [{"case": row.case.gpt.name, "reason": "needs more memory"}]


def test_an_engine_that_was_not_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "core", None)
    asked = ("predict", "tiny-1m", "-m", "perlmutter", "-n", "8", "--batch", "8")
    said = simgpt(*asked, "--engine", "compiled")
    assert said.status == 3
    assert_names(said.err, "C compiler", "simpy")
    monkeypatch.delenv("SIMGPT_ENGINE", raising=False)
    said = simgpt(*asked, "--json")
    assert json.loads(said.out)["engine"] == "simpy"
    assert said.err.count("without a C compiler") == 1  # and that it is slower
    monkeypatch.setenv("SIMGPT_ENGINE", "simpy")
    assert "C compiler" not in simgpt(*asked).err


def test_commands_of_published_runs_are_compared_with_nothing(tmp_path: Path) -> None:
    stored = tmp_path / "before.json"
    stored.write_text("{}", encoding="utf-8")
    said = simgpt("validate", "published", "--commands", "--against", str(stored))
    assert said.status == 2
    assert_names(said.err, "--against")
