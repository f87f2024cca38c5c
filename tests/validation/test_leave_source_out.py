"""Constants that are chosen on published rows, chosen without a source."""

from __future__ import annotations

from importlib import resources

import pytest

import validation.leave_source_out
from simulator.stacks import load_stack
from validation.leave_source_out import (
    ALL,
    SHARED,
    chosen_paces,
    is_chosen,
    leave_source_out,
    own_pace,
    shared_pace,
)
from validation.published.comparison import Comparison
from validation.published.outcome import PREDICTED, Outcome, held_out
from validation.published.predicting import predict_runs
from validation.published.runs import PublishedRun, read_runs

NAMES = [f"row-{number}" for number in range(200)]
CHOOSING = [name for name in NAMES if is_chosen(name) and not held_out(name)]
PACE = load_stack("other").own_kernels["pace"]


def outcome(name: str, measured_s: float, stack: str = "torchtitan", source: str = "A") -> Outcome:
    """A row predicted at 10 s, 8 s of them compute."""
    run = PublishedRun({"id": name, "source": source})
    parts = {"compute": 8.0, "dp": 2.0}
    return Outcome(
        run, PREDICTED, stack=stack, measured_s=measured_s, predicted_s=10.0, breakdown_s=parts
    )


def test_a_pace_makes_compute_as_long_as_the_measured_step_leaves_for_it() -> None:
    """12 s with 2 s of communication leave 10 s for what takes 8 s at the shared pace; 10 s are
    right as they are."""
    rows = [outcome(CHOOSING[0], 12.0), outcome(CHOOSING[1], 10.0, source="B")]
    assert own_pace(rows) == pytest.approx({"A": PACE * 0.8, "B": PACE})


def test_rows_of_other_constants_and_held_out_rows_choose_nothing() -> None:
    apart = next(name for name in NAMES if held_out(name) and is_chosen(name))
    silent = next(name for name in NAMES if not held_out(name) and not is_chosen(name))
    rows = [
        outcome(apart, 12.0),
        outcome(silent, 12.0),
        outcome(CHOOSING[0], 12.0, stack="nemo"),
        outcome(CHOOSING[1], 12.0, stack="megatron-deepspeed-vtrain"),
    ]
    assert own_pace(rows) == {}


def test_the_shared_pace_is_the_median_of_the_sources_but_for_the_one_left_out() -> None:
    paces = {"A": 0.80, "B": 0.90, "C": 1.0, "D": 0.701}
    assert shared_pace(paces) == pytest.approx(0.85)
    assert shared_pace(paces, "A") == pytest.approx(0.90)
    assert shared_pace({"A": 0.80, "B": 0.884}, "A") == pytest.approx(0.88)
    assert shared_pace({"A": 0.80}, "A") == PACE


def test_a_source_that_is_left_out_is_predicted_with_what_the_others_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two sources each has the other's pace; a third, of the GPUs' vendor, keeps its error."""
    ids = ("mpt-001", "titan-034", "korth-001")
    outcomes = predict_runs([run for run in read_runs() if run.id in ids], lambda _: None)
    korth, mpt, titan = sorted(outcomes, key=lambda each: each.run.id)
    paces = {mpt.run.source: PACE, titan.run.source: PACE / 2}
    monkeypatch.setattr(validation.leave_source_out, "own_pace", lambda _: paces)
    found = leave_source_out(Comparison(tuple(outcomes), None, None))
    assert found[korth.run.source] == pytest.approx(abs(korth.error or 0.0))
    assert found[titan.run.source] == pytest.approx(abs(titan.error or 0.0))
    twice = 2 * (1 + (mpt.error or 0.0)) - 1  # but for what is no compute
    assert found[mpt.run.source] == pytest.approx(twice, rel=0.1)


def test_the_shared_constant_is_that_of_a_stack_of_which_nothing_is_known() -> None:
    assert SHARED.own_kernels["pace"] == PACE == 0.9
    assert "host" not in SHARED.own_kernels


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_file_says_which_pace_its_rows_choose_today() -> None:
    """It keeps the one that they chose first, and says so."""
    rows = [run for run in read_runs() if is_chosen(run.id)]
    chosen = chosen_paces(predict_runs(rows, lambda _: None))
    pace, others = chosen.pop(ALL), chosen.values()
    left_out = f"{min(others):.2f} to {max(others):.2f} with"
    said = f"{pace:.2f} on the {len(chosen)} sources of today, {left_out}"
    text = (resources.files("simulator") / "stacks" / "usual.toml").read_text(encoding="utf-8")
    assert said in " ".join(text.replace("#", " ").split())


def test_the_paces_that_are_printed_are_those_of_all_and_of_all_but_one() -> None:
    rows = [outcome(CHOOSING[0], 12.0), outcome(CHOOSING[1], 10.0, source="B")]
    assert chosen_paces(rows) == pytest.approx({ALL: 0.81, "A": PACE, "B": 0.72})
