"""Ranges of predictions: what runs count how much, by hand, and what is said of them."""

from __future__ import annotations

import math

import pytest

from simulator.predict import predict
from simulator.stacks import load_stack
from simulator.uncertainty.step_range import (
    DENSE,
    OF_EXPERTS,
    SHARE,
    SPREAD,
    WIDENING,
    PublishedResiduals,
    Run,
    published_residuals,
)
from tests.messages import assert_names
from tools.reliability import reliability
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan_text import parse_plan


def distance(one: Run, other: Run) -> float:
    return float(PublishedResiduals([other], ["a"], [0.0]).distances(one)[0])


HERE = Run("megatron-core", "megatron-core", "h100", "h100", 64, tensor=True, pipeline=True)


def test_distance_is_by_stack_device_size_and_kind() -> None:
    assert distance(HERE, HERE) == 0
    assert distance(HERE, HERE._replace(devices=8)) == pytest.approx(3 / 6)
    assert distance(HERE, HERE._replace(gpu="h200")) == 0.5
    assert distance(HERE, HERE._replace(gpu="a100-80", gpu_family="a100")) == 1.0
    assert distance(HERE, HERE._replace(stack="nemo")) == 0.5
    assert distance(HERE, HERE._replace(stack="torchtitan", stack_family="fsdp")) == 1.5
    assert distance(HERE, HERE._replace(pipeline=False)) == 0.3


def test_the_range_goes_from_the_tenth_to_the_ninetieth_percentile_and_is_widened() -> None:
    """Eleven runs alike, of one source: the second and the tenth are the percentiles."""
    residuals = [(n - 5) / 100 for n in range(11)]
    known = PublishedResiduals([HERE] * 11, ["a"] * 11, residuals)
    found = known.range_of(10.0, HERE)
    assert found.low_s == pytest.approx(10 * math.exp(WIDENING * -0.04))
    assert found.high_s == pytest.approx(10 * math.exp(WIDENING * 0.04))
    assert (found.alike, found.sources) == (11, 1)


def test_a_source_of_many_runs_counts_as_one() -> None:
    many = PublishedResiduals([HERE] * 101, ["a"] * 100 + ["b"], [0.0] * 100 + [0.3])
    assert many.range_of(1.0, HERE).high_s == pytest.approx(math.exp(WIDENING * 0.3))


def test_runs_that_are_far_count_less() -> None:
    """Of two sources, the far one has e^-2.5 / (1 + e^-2.5) of the weight, below a tenth."""
    far = HERE._replace(stack="tp", stack_family="tp", gpu="y", gpu_family="y")
    known = PublishedResiduals([HERE, far], ["a", "b"], [0.05, 0.9])
    assert distance(HERE, far) == 2.5
    assert known.range_of(1.0, HERE).high_s == pytest.approx(math.exp(WIDENING * 0.05))


def test_the_range_widens_with_the_distance_to_the_nearest_run() -> None:
    """At a distance of 2.5 from the one run a residual spreads 1 + SPREAD * 2.5 as far."""
    far = HERE._replace(stack="tp", stack_family="tp", gpu="y", gpu_family="y")
    known = PublishedResiduals([HERE], ["a"], [0.1])
    near_s, far_s = (known.range_of(1.0, run).high_s for run in (HERE, far))
    assert near_s == pytest.approx(math.exp(WIDENING * 0.1))
    assert far_s == pytest.approx(math.exp(WIDENING * 0.1 * (1 + SPREAD * 2.5)))


def test_what_a_run_took_counts_by_how_far_from_other_sources_it_was_itself() -> None:
    """A residual of 0.1 at distance 1 of all others is one of 0.1 / (1 + SPREAD) at none."""
    known = PublishedResiduals([HERE], ["a"], [0.1], apart=[1.0])
    assert known.range_of(1.0, HERE).high_s == pytest.approx(
        math.exp(WIDENING * 0.1 / (1 + SPREAD))
    )


def test_a_source_that_is_left_out_does_not_count() -> None:
    known = PublishedResiduals([HERE, HERE], ["a", "b"], [0.05, 0.9])
    assert known.range_of(1.0, HERE, without="b").high_s == pytest.approx(math.exp(WIDENING * 0.05))


@pytest.mark.parametrize("table", [DENSE, OF_EXPERTS])
def test_eight_of_ten_published_steps_are_within_what_the_other_sources_say(table: str) -> None:
    """As the mean over sources."""
    ((_, covered),) = reliability(published_residuals(table), [SHARE])
    assert covered == pytest.approx(SHARE, abs=0.04)


def test_the_prediction_itself_is_always_within() -> None:
    known = PublishedResiduals([HERE] * 2, ["a", "b"], [0.1, 0.2])
    found = known.range_of(3.0, HERE)
    assert found.low_s == 3.0
    assert found.high_s > 3.0


@pytest.mark.parametrize(
    ("runs", "is_few"),
    [
        (1, True),
        (4, True),
        (5, False),
    ],
)
def test_few_runs_that_are_alike_are_called_few(runs: int, is_few: bool) -> None:
    known = PublishedResiduals([HERE] * runs, ["a"] * runs, [0.1] * runs)
    found = known.range_of(1.0, HERE)
    assert (found.alike, found.sources) == (runs, 1)
    assert_names(found.words, str(runs), "1")
    assert ("few" in found.words) == is_few


def test_what_no_run_is_like_is_said() -> None:
    alone = HERE._replace(stack="ours", stack_family="ours", gpu="B300", gpu_family="B300")
    found = published_residuals().range_of(1.0, alone)
    assert found.alike == 0
    assert_names(found.words, "ours", "64 B300")


def test_predictions_carry_their_range() -> None:
    plan = parse_plan("tp=4,pp=2,dp=8,mbs=1", batch=64)
    machine, stack = load_machine("dgx-h100"), load_stack("megatron-core")
    found = predict(find_model("gpt-20b"), plan, machine, stack=stack)
    record = found.as_dict()
    assert record["low_step_s"] < found.step_s < record["high_step_s"]
    assert record["range"]["alike"] > 20
    wide = predict(find_model("gpt-20b"), plan, machine)
    narrow, default = (
        (each.range.high_s - each.range.low_s) / each.step_s for each in (found, wide)
    )
    assert narrow < default
