"""The errors of published runs: what cancels and what does not, and who stays held out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validation.moe.comparison import MoeComparison
from validation.published.comparison import Comparison, error_score
from validation.published.outcome import PREDICTED, Outcome, held_out
from validation.published.runs import PublishedRun

IDS = [f"row-{number}" for number in range(100)]
APART = [name for name in IDS if held_out(name)]
OPEN = [name for name in IDS if not held_out(name)]


def outcome(name: str, error: float, **cells: str) -> Outcome:
    """A row of 10 s that is predicted with that error."""
    columns = {"id": name, "source": "A", "machine": "M", **cells}
    return Outcome(
        PublishedRun(columns), PREDICTED, measured_s=10.0, predicted_s=10.0 * (1 + error)
    )


def test_errors_of_both_signs_cancel_in_the_bias_alone() -> None:
    found = error_score([outcome(f"{n}", error) for n, error in enumerate((0.1, -0.3, 0.2, 0.0))])
    assert found.rows == 4
    assert found.mape == pytest.approx(0.6 / 4)
    assert found.median_error == pytest.approx(0.15)
    assert found.bias == pytest.approx(0.0, abs=1e-12)
    assert found.worst is not None
    assert found.worst.error == pytest.approx(-0.3)


def test_the_held_out_rows_are_scored_apart_and_in_no_score_of_the_others() -> None:
    report = Comparison(
        (outcome(OPEN[0], 0.1), outcome(OPEN[1], 0.3), outcome(APART[0], 0.8)), None, None
    )
    scores = (report.developed, report.held_out, report.all)
    assert [each.rows for each in scores] == [2, 1, 3]
    assert [each.mape for each in scores] == pytest.approx([0.2, 0.8, 0.4])


def test_the_mean_of_the_sources_weighs_a_source_of_one_row_as_one_of_three() -> None:
    """A has three rows 10 % off and B one 50 % off, on two machines that both of them used."""
    rows = [outcome(f"a-{n}", 0.1, machine=machine) for n, machine in enumerate("MMN")]
    rows.append(outcome("b-0", -0.5, source="B", machine="M"))
    report = Comparison(tuple(rows), None, None)
    assert report.mean_of_sources() == pytest.approx(0.3)
    assert report.all.mape == pytest.approx(0.2)


def test_models_with_experts_have_an_error_of_their_own() -> None:
    """Of A 10 and 30 % off and of B 50 %: 35 %; rows without experts and one that is not predicted
    are in neither number."""
    rows = [outcome(OPEN[0], 0.1, experts="8"), outcome(OPEN[1], -0.3, experts="8")]
    rows += [outcome(OPEN[2], 0.9), outcome(OPEN[3], 0.7, source="C", experts="")]
    rows += [outcome(OPEN[4], 0.5, source="B", experts="128")]
    rows += [replace(rows[0], predicted_s=None), replace(rows[0], unscored="printed elsewhere")]
    rows += [outcome(APART[0], 0.8, experts="8"), outcome(APART[1], 0.1)]
    found = MoeComparison(Comparison(tuple(rows), None, None))
    own = found.with_experts
    assert (own.sources, own.rows, own.held_out_rows) == (2, 3, 1)
    assert own.mean_of_sources == pytest.approx(0.35)
    assert own.held_out_mape == pytest.approx(0.8)
    assert found.mean_of_sources == pytest.approx((1.3 / 3 + 0.5 + 0.7) / 3)


def test_a_row_that_does_not_count_is_in_no_error_though_it_is_predicted() -> None:
    counted = outcome("a", 0.1)
    strange = Outcome(
        PublishedRun({"id": "b"}),
        PREDICTED,
        measured_s=1.0,
        predicted_s=9.0,
        unscored="half of a step",
    )
    missing = Outcome(PublishedRun({"id": "c"}), "unsupported", measured_s=1.0)
    found = error_score([counted, strange, missing])
    assert (found.rows, found.unpredicted, found.worst) == (1, 1, counted)
    assert found.mape == pytest.approx(0.1)


def test_rows_that_would_not_fit_are_named() -> None:
    rows = outcome("a", 0.1), replace(outcome("b", 0.1), fits=False)
    report = Comparison(rows, None, None)
    assert report.not_fitting == ["b"]
