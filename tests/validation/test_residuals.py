"""The table of residuals is that of the rows, and the ranges hold for sources they do not know."""

from __future__ import annotations

import math
from importlib import resources

import pytest

from simulator.predict import predict
from simulator.uncertainty.step_range import (
    OF_EXPERTS,
    OF_MODELS,
    SHARE,
    PublishedResiduals,
    Run,
    published_residuals,
    run_of_plan,
)
from tests.validation.test_published import run
from tools.residuals import table
from topologies.machine_files import load_machine
from validation.moe.comparison import validate_moe
from validation.published import validate_published
from validation.published.coverage import coverage, run_of
from validation.published.outcome import PREDICTED, Outcome
from workload.gpt import find_model
from workload.plan_text import parse_plan

HERE = Run("megatron-core", "megatron-core", "h100", "h100", 8, tensor=True, pipeline=True)


def outcome(source: str, measured_s: float) -> Outcome:
    row = run(id=f"{source}-{measured_s}", source=source)
    return Outcome(row, PREDICTED, stack="megatron-core", measured_s=measured_s, predicted_s=1.0)


def test_a_row_is_a_run_of_its_stack_on_its_device() -> None:
    found = run_of(outcome("a", 1.0))
    assert found == Run(
        "megatron-core", "megatron-core", "a100-80", "a100", 8, tensor=True, pipeline=True
    )


KNOWN = PublishedResiduals([HERE] * 3, ["a", "a", "b"], [0.1, 0.7, 0.2])
OF_A = [outcome("a", 1.1), outcome("a", 2.0)]
# Where ranges end at distance 1, whose spread is 1.25: a's at what b took, b's at a's largest.
HIGH_OF_A, HIGH_OF_B = 1.02 * 1.25 * 0.2, 1.02 * 1.25 * 0.7


def test_coverage_is_the_mean_over_sources_that_know_nothing_of_themselves() -> None:
    """Of a: 1.1 is within what b took, 2.0 is not; b's own step is within what a took."""
    found = coverage([*OF_A, outcome("b", 1.2)], KNOWN)
    assert found.share == pytest.approx((1 / 2 + 1) / 2)
    assert found.sources == 2
    assert found.half_width == pytest.approx((math.exp(HIGH_OF_A) - 1) / 2)  # of two of three rows
    missed = 10 * (math.log(2.0) - HIGH_OF_A)
    assert found.interval_score == pytest.approx((HIGH_OF_A + missed / 2 + HIGH_OF_B) / 2)


def test_a_widening_that_does_not_know_a_source_is_what_the_others_need() -> None:
    """As shares of their ranges a's steps need 0.37 and 2.7 and b's needs 0.2: of a's none is
    within what b's needs, b's is within what a's need. Both sources need that of 2.0."""
    found = coverage([*OF_A, outcome("b", 1.2)], KNOWN)
    assert found.nested == (0 + 1) / 2
    assert found.widening == pytest.approx(1.02 * math.log(2.0) / HIGH_OF_A)


def test_where_there_is_no_other_source_the_widening_is_the_tables() -> None:
    found = coverage(OF_A, KNOWN)
    assert found.nested == found.share == 1 / 2


def test_rows_that_are_held_out_are_not_in_the_table() -> None:
    rows = [outcome("a", 1 + n / 100) for n in range(40)]
    lines = table(rows).splitlines()[1:]
    assert len(lines) == sum(not each.held_out for each in rows) < 40


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_table_is_that_of_the_rows_and_eight_of_ten_steps_are_within() -> None:
    outcomes = validate_published().outcomes
    shipped = resources.files("simulator") / "uncertainty" / "residuals.csv"
    assert table(outcomes) == shipped.read_text(encoding="utf-8")
    found = coverage([each for each in outcomes if not each.held_out])
    assert abs(found.share - SHARE) < 0.04
    assert abs(found.nested - SHARE) < 0.04


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_table_of_models_with_experts_is_that_of_their_rows() -> None:
    outcomes = [each for each in validate_moe().outcomes if each.run.text("experts")]
    shipped = resources.files("simulator") / "uncertainty" / "residuals_of_experts.csv"
    assert table(outcomes) == shipped.read_text(encoding="utf-8")


def test_a_model_with_experts_has_the_range_of_such_models() -> None:
    machine = load_machine("dgx-h100")
    gpt, plan = find_model("tiny-mixtral-2m"), parse_plan("dp=8", batch=8)
    found = predict(gpt, plan, machine)
    own = published_residuals(OF_EXPERTS).range_of(
        found.step_s, run_of_plan(found.stack, found.device, plan), of=OF_MODELS
    )
    assert found.range == own
    dense = predict(find_model("tiny-2m"), plan, machine).range
    assert dense.high_s / dense.low_s != pytest.approx(own.high_s / own.low_s)
