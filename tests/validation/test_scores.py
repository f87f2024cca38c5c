"""The errors of published runs: what cancels and what does not, and who stays held out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.uncertainty.ranking import TimedPlan
from validation.moe.comparison import MoeComparison
from validation.published.comparison import Comparison, error_score
from validation.published.coverage import RangedRow
from validation.published.outcome import PREDICTED, Outcome, held_out
from validation.published.runs import PublishedRun
from validation.published.scores import (
    Change,
    PairOrder,
    SourceError,
    StoredRunError,
    changes,
    pair_order,
    source_errors,
    stored_errors,
    weighted_error,
)

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


def test_a_run_of_a_quarter_and_one_of_four_times_the_predicted_step_are_equally_wrong() -> None:
    found = source_errors([outcome("a", 3.0), outcome("b", -0.75, source="B")])
    assert found == {"A": SourceError(1, math.log(4)), "B": SourceError(1, math.log(4))}


def test_sources_weigh_by_the_root_of_their_rows() -> None:
    """One row off by ln 2 and four exact ones: 1 * ln 2 / (1 + 2)."""
    rows = [outcome("a", 1.0), *(outcome(f"b{n}", 0.0, source="B") for n in range(4))]
    assert weighted_error(source_errors(rows)) == pytest.approx(math.log(2) / 3)


def plans(*times: tuple[float, float], question: str = "q") -> list[TimedPlan]:
    return [TimedPlan(question, number, each) for number, each in enumerate(times)]


def test_only_pairs_of_plans_5_to_20_percent_apart_are_ordered() -> None:
    """Of measured 1.00, 1.10 and 1.30 the pairs (1, 1.1) and (1.1, 1.3) are 10 and 18 % apart, the
    pair (1, 1.3) is 30; the second is predicted the wrong way round."""
    found = pair_order(plans((1.0, 1.00), (1.3, 1.10), (1.2, 1.30)))
    assert found == PairOrder(pairs=2, questions=1, share=0.5)


def test_questions_count_alike_and_equal_predictions_half() -> None:
    right = plans((1.0, 1.0), (1.1, 1.1))
    tied = plans((1.0, 1.0), (1.0, 1.1), question="other")
    assert pair_order([*right, *tied]) == PairOrder(2, 2, 0.75)
    assert pair_order(plans((1.0, 1.0), (2.0, 1.04))) is None


def test_a_change_counts_rows_that_both_comparisons_score(tmp_path: Path) -> None:
    stored = tmp_path / "before.json"
    rows = [
        {"id": "a", "predicted_step_s": 20.0, "measured_step_s": 10.0},
        {"id": "gone", "predicted_step_s": 1.0, "measured_step_s": 1.0},
        {"id": "refused", "predicted_step_s": None, "measured_step_s": 1.0},
    ]
    stored.write_text(json.dumps({"rows": rows}))
    found = changes([outcome("a", 0.0), outcome("new", 0.5)], stored_errors(stored))
    assert found == {"A": Change(1, math.log(2), 0.0)}


@pytest.mark.parametrize("text", ["[]", "{}", '{"rows": 3}'])
def test_what_is_no_stored_comparison_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(StoredRunError, match="rows"):
        stored_errors(path)


def test_the_interval_score_is_the_width_and_ten_times_what_lies_outside() -> None:
    """Gneiting and Raftery's section 6.2 at alpha = 0.2."""
    inside, outside = (RangedRow("a", x, -0.1, 0.2, apart=0.0) for x in (0.0, 0.25))
    assert inside.interval_score == pytest.approx(0.3)
    assert outside.interval_score == pytest.approx(0.3 + 10 * 0.05)
    assert (inside.within, outside.within) == (True, False)
