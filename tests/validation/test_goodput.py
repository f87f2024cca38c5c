"""Published figures of whole runs: what is given, what is assumed, and how near ours are."""

from __future__ import annotations

import json

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt
from validation.goodput import GOAL, PREDICTED, GoodputRow, Input, validate_goodput

ROWS = {row.id: row for row in validate_goodput()}
COUNTED = [name for name, row in ROWS.items() if row.is_counted]
NONE = {"failures": 0, "days": 1}
SMALL = "rsc-1-1024-gpus-failures"  # whose source has failures that are no node's


@pytest.mark.parametrize("name", [name for name in COUNTED if name != SMALL])
def test_figures_whose_inputs_suffice_are_within_the_goal(name: str) -> None:
    assert abs(ROWS[name].difference) <= GOAL


def test_small_jobs_fail_more_often_than_their_nodes() -> None:
    assert ROWS[SMALL].difference > 2


def test_the_rate_of_a_job_is_that_of_its_nodes() -> None:
    row = ROWS["rsc-1-16384-gpus-failures"]
    assert row.predicted == pytest.approx(24 / (2048 * 6.5 / 1000))


def test_what_is_assumed_is_named_and_every_input_says_where_it_is_from() -> None:
    for row in ROWS.values():
        assert row.given
        assert row.source
        assert row.certainty in ("read", "quoted")
        assert all(each.origin for each in (*row.given.values(), *row.assumed.values()))
    assert {"megascale-12288-gpus", "llama-3-405b-16384-gpus", "opt-175b-992-gpus"} == {
        name for name, row in ROWS.items() if row.open and name[:3] != "rsc"
    }


def test_a_bound_that_is_kept_has_no_difference() -> None:
    def row(predicted: float) -> GoodputRow:
        given = {"days": Input(1, "the text")}
        return GoodputRow("id", "effective", "%", 90, predicted, True, "a", "read", given, {})

    assert row(95).difference == 0
    assert row(87).difference == pytest.approx(-0.03)


def test_the_command_prints_every_row_and_counts() -> None:
    said = simgpt("validate", "goodput")
    assert said.status == 0
    assert all(name in said.out for name in ROWS)
    assert_names(said.out, "8 of 9", "3")
    record = json.loads(simgpt("validate", "goodput", "--json").out)
    assert [row["id"] for row in record["rows"]] == list(ROWS)
    assert record["rows"][-1]["given"]["model"]["from"]


@pytest.mark.parametrize(
    ("kind", "values", "predicted"),
    [
        # Twelve failures a day, each of 10 minutes and of 2 to be noticed: 2.4 hours in 24.
        ("effective", {"lost_s": 600, "detection_s": 120, "failures": 12, "days": 1}, 90.0),
        # A node fails twice in 1000 days: 500 nodes once a day, or every 24 hours.
        ("failures", {"nodes": 500, "failures_per_1000_node_days": 2}, 24.0),
        ("failures", {"failures": 12, "days": 4}, 8.0),
        # Half of two hours and a stall of 10 minutes, and 20 more until the save is durable.
        ("lost", {**NONE, "interval_s": 7200, "stall_s": 600, "write_s": 1800}, 85 / 60),
        # An hour of training and 400 s of each save, which is a ninth of it.
        ("effective", {**NONE, "interval_s": 3600, "stall_s": 400, "write_s": 400}, 90.0),
        ("effective", {**NONE, "interval_s": 3600, "stall_share": 1 / 9}, 90.0),
    ],
)
def test_figures_follow_from_their_inputs(
    kind: str, values: dict[str, float], predicted: float
) -> None:
    assert PREDICTED[kind](values) == pytest.approx(predicted, rel=1e-4)
