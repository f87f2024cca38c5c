"""How a sweep's rows leave it: the best first, counted whole, and with the status that they ask."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simgpt.commands.sweep import answer_rows
from simgpt.studies.study_table import _waits, ranked, undecided
from tests.messages import assert_names
from tests.simgpt.face import simgpt

Row = dict[str, Any]


def row(number: int, status: str = "ok", step_s: float = 1.0) -> Row:
    prediction = {"step_s": step_s, "model_flops_per_s_per_device": 1 / step_s}
    return {"id": number, "status": status, "reason": "", "prediction": prediction}


def answered(capsys: pytest.CaptureFixture[str], rows: list[Row], limit: int | None) -> Any:
    answer_rows("a table", {"title": "t"}, rows, as_json=True, limit=limit)
    return json.loads(capsys.readouterr().out)


def test_all_rows_are_counted_though_few_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(0), row(1), row(2, "infeasible")]
    found = answered(capsys, rows, 1)
    counts = {key: found[key] for key in ("points", "ok", "infeasible", "error")}
    assert counts == {"points": 3, "ok": 2, "infeasible": 1, "error": 0}
    assert [each["id"] for each in found["rows"]] == [0]
    assert len(answered(capsys, rows, None)["rows"]) == 3


@pytest.mark.parametrize(
    ("statuses", "status"),
    [(("infeasible", "infeasible"), 3), (("ok", "error"), 1), (("infeasible", "error"), 1)],
)
def test_a_sweep_of_which_nothing_can_run_ends_with_3_and_one_that_failed_with_1(
    statuses: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(number, each) for number, each in enumerate(statuses)]
    with pytest.raises(SystemExit) as end:
        answered(capsys, rows, None)
    assert end.value.code == status


def test_a_plan_that_does_not_fit_comes_last_though_it_would_be_the_fastest() -> None:
    rows = [row(0, "infeasible", 0.1), row(1, step_s=3.0), row(2, step_s=2.0)]
    for order in ("time", "throughput"):
        assert [each["id"] for each in ranked(rows, order)] == [2, 1, 0]


@pytest.mark.usefixtures("exact_peaks")
def test_rows_that_do_not_fit_show_their_figures_below_those_that_fit() -> None:
    said = simgpt(
        *("predict", "llama-3.1-8b", "-m", "8x8xH100,8xNDR", "-n", "64", "--plan", "dp=rest"),
        *("--stack", "megatron-core", "--model-set", "sequence=8192", "--batch", "512"),
        *("--sweep", "tp=1,2", "--sweep", "mbs=1,3"),
    )
    first, second, *_ = said.out.partition("\n\n    tp")[2].split("\n\n")
    rows = [line.split() for line in first.splitlines()[2:]]
    assert [row[0] for row in rows] == ["2", "0"]  # though the second would be the faster one
    assert "yes" in rows[0]
    assert float(rows[0][3]) > float(rows[1][3])
    assert " ".join(rows[1]).startswith("0 1 1 ")
    assert {"GiB", "no,"} <= {*rows[1]}
    assert [line.split()[0] for line in second.splitlines()[2:] if line[0] != " "] == ["1", "3"]
    assert_names(said.out, "4 points", "1", "3")


def point(number: int, tokens_per_s: float, point: Row) -> Row:
    about = {"devices": 8, "device": "H100", "tokens_per_s": tokens_per_s, "difference_error": 0.1}
    found = row(number)
    return found | {"point": point, "prediction": found["prediction"] | about}


def test_rows_within_the_error_of_a_difference_of_the_best_are_undecided() -> None:
    """A row of another model is compared with none, whatever its speed."""
    rows = [
        point(4, 100, {"plan.zero": 1}),
        point(1, 95, {"model": "b"}),
        point(0, 92, {"plan.zero": 2, "batch": 4}),
        point(2, 80, {}),
    ]
    assert undecided(rows, "throughput") == (0.1, [4, 0])
    assert undecided(rows, "memory") == (None, [])
    assert undecided(rows[:2], "time") == (None, [])
    assert undecided([rows[0], rows[3]], "time") == (0.1, [])


@pytest.mark.parametrize("other", [{"devices": 16}, {"device": "A100"}])
def test_rows_on_other_devices_are_compared_with_none(other: Row) -> None:
    one, two = point(0, 100, {}), point(1, 99, {})
    assert undecided([one, two], "time") == (0.1, [0, 1])
    two["prediction"] |= other
    assert undecided([one, two], "time") == (None, [])


def test_what_a_row_waits_on_is_neither_its_compute_nor_idle() -> None:
    parts = {"compute": 5.0, "optimizer": 4.0, "idle": 3.0, "tp": 0.5, "dp": 2.0}
    waits = _waits({"prediction": {"step_s": 20.0, "breakdown_s": parts}})
    assert waits.split() == ["dp", "10.0", "%"]
