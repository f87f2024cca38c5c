"""Published figures of whole runs: what is given, what is assumed, and how near ours are."""

from __future__ import annotations

import json

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt
from validation.goodput import GOAL, GoodputRow, Input, validate_goodput

ROWS = {row.id: row for row in validate_goodput()}
COUNTED = [name for name, row in ROWS.items() if row.is_counted]
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
