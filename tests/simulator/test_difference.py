"""The error of a difference between two plans: pairs by hand, and what is undecided."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.predict import predict
from simulator.uncertainty.difference import (
    WIDENING,
    DifferenceError,
    PublishedPairs,
    order_of,
    published_order,
    published_pairs,
)
from simulator.uncertainty.step_range import (
    DENSE,
    OF_EXPERTS,
    SHARE,
    PublishedRow,
    Run,
    run_of_plan,
    table_of,
)
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan_text import parse_plan

HERE = Run("megatron-core", "megatron-core", "h100", "h100", 64, tensor=True, pipeline=True)
PLANS = count(start=1000)
FAR = Run("fsdp", "fsdp", "a100-80", "a100", 64, tensor=False, pipeline=False)


def row(
    residual: float,
    source: str = "a",
    question: int = 0,
    run: Run = HERE,
    predicted_s: float = 1.0,
    plan: int | None = None,
) -> PublishedRow:
    """A run of a plan of its own, or of one that others ran, too."""
    number = next(PLANS) if plan is None else plan
    return PublishedRow(source, run, residual, question, number, predicted_s)


def error(*rows: PublishedRow, without: str = "") -> float:
    """The error of a difference as a logarithm, before it is widened."""
    return math.log1p(PublishedPairs(rows).error_of(HERE, without=without).share) / WIDENING


def test_what_both_plans_are_off_by_cancels() -> None:
    """Both take half as long again as predicted, and one a hundredth more."""
    assert error(row(0.40), row(0.41)) == pytest.approx(0.01)


def test_only_runs_that_differ_in_the_plan_alone_are_pairs() -> None:
    assert error(row(0.0), row(0.1), row(0.9, question=1)) == pytest.approx(0.1)


def test_runs_of_one_plan_are_no_pair() -> None:
    """Two releases ran one plan, a tenth apart, and one of them another, as fast."""
    same = [row(0.0, plan=1), row(0.1, plan=1)]
    assert error(*same, row(0.02)) == pytest.approx(0.08)
    assert error(*same, row(0.04), row(0.9, plan=2, question=1)) == pytest.approx(0.06)


def test_eight_of_ten_pairs_miss_by_less() -> None:
    """Five runs have ten pairs, which miss by 1, 2, 3, 4, 5, 7, 8, 10, 11 and 12 hundredths."""
    found = [row(at / 100) for at in (0, 1, 3, 8, 12)]
    misses = sorted(abs(a.residual - b.residual) for n, a in enumerate(found) for b in found[:n])
    assert error(*found) == pytest.approx(misses[7])


def test_a_source_of_many_pairs_counts_as_one() -> None:
    """Ten pairs of one source miss by nothing, one of another by a tenth: each has half a say."""
    assert error(*[row(0.0)] * 5, row(0.0, "b", 1), row(0.1, "b", 1)) == pytest.approx(0.1)


def test_pairs_that_are_far_count_less() -> None:
    """At a distance of 1.5 for the stack, 1 for the device and 0.3 for the kind, the others have
    e^-2.8 of a say, which is less than a fifth."""
    near, far = [row(0.0), row(0.02)], [row(0.0, "b", 1, FAR), row(0.5, "b", 1, FAR)]
    assert error(*near, *far) == pytest.approx(0.02)
    assert error(*near, *far, without="a") == pytest.approx(0.5)


def test_plans_within_the_error_of_the_best_are_undecided() -> None:
    assert DifferenceError(0.1, 0, 0).undecided([2.0, 2.1, 2.19, 2.2]) == [0, 1, 2]
    assert DifferenceError(0.1, 0, 0).undecided([2.0, 2.3]) == []
    assert DifferenceError(0.1, 0, 0).undecided([]) == []


@given(steps=st.lists(st.floats(0.1, 10), min_size=2), share=st.floats(0, 1))
def test_a_larger_error_decides_no_more(steps: list[float], share: float) -> None:
    narrow = DifferenceError(share / 2, 0, 0).undecided(steps)
    assert set(narrow) <= set(DifferenceError(share, 0, 0).undecided(steps))


def test_the_order_of_plans_is_that_of_their_measured_times() -> None:
    """Predicted 1, 2 and 3 s; measured 3, 2 and 2.5 s: of three pairs two are wrong, and the pick
    takes half as long again as the best."""
    times = [(1.0, 3.0), (2.0, 2.0), (3.0, 2.5)]
    rows = [row(math.log(m / p), predicted_s=p) for p, m in times]
    found = order_of([*rows, row(0.0, question=1), row(0.0, question=2, predicted_s=math.nan)])
    assert found is not None
    assert found.groups == found.plan_groups == 1
    assert found.tau == found.plan_tau == pytest.approx(-1 / 3)
    assert found.regret == found.plan_regret == pytest.approx(0.5)


def test_a_plan_that_ran_twice_counts_once_in_the_order() -> None:
    """Predicted 1 s and measured 1 and 3 s, which is 2 s as the median; predicted and measured
    2.5 s: as plans they are in order, and the pick is the best."""
    twice = [row(math.log(measured_s), plan=1) for measured_s in (1.0, 3.0)]
    found = order_of([*twice, row(0.0, predicted_s=2.5)])
    assert found is not None
    assert (found.plan_groups, found.plan_tau, found.plan_regret) == (1, 1.0, 0.0)
    assert found.tau == pytest.approx(0.0)
    assert found.regret == pytest.approx(1.0)


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_the_widening_makes_eight_of_ten_right_for_sources_that_are_not_known(
    experts: bool,
) -> None:
    """It was chosen on dense models."""
    needed = published_pairs(table_of(experts=experts)).widening()
    assert needed <= WIDENING
    assert experts or needed > WIDENING - 0.05
    assert SHARE == 0.8


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_published_plans_are_mostly_in_the_order_that_is_predicted(experts: bool) -> None:
    found = published_order(experts=experts)
    assert found.plan_groups > (5 if experts else 30)
    assert found.plan_tau is not None
    assert found.plan_tau > 0.6
    assert 0 <= found.regret < 0.1


def test_a_model_with_experts_has_the_error_of_such_models() -> None:
    machine, plan = load_machine("dgx-h100"), parse_plan("dp=8", batch=8)
    found = predict(find_model("tiny-mixtral-2m"), plan, machine)
    run = run_of_plan(found.stack, found.device, plan)
    assert found.difference_error == published_pairs(OF_EXPERTS).error_of(run)
    dense = predict(find_model("tiny-2m"), plan, machine).difference_error
    assert dense == published_pairs(DENSE).error_of(run) != found.difference_error
