"""The error of a difference between two plans: pairs by hand, and what is undecided."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.uncertainty.difference import (
    WIDENING,
    DifferenceError,
    PublishedPairs,
    order_of,
    published_order,
    published_pairs,
)
from simulator.uncertainty.step_range import SHARE, PublishedRow, Run

HERE = Run("megatron-core", "megatron-core", "h100", "h100", 64, tensor=True, pipeline=True)
FAR = Run("fsdp", "fsdp", "a100-80", "a100", 64, tensor=False, pipeline=False)


def row(
    residual: float, source: str = "a", question: int = 0, run: Run = HERE, predicted_s: float = 1.0
) -> PublishedRow:
    return PublishedRow(source, run, residual, question, predicted_s)


def error(*rows: PublishedRow, without: str = "") -> float:
    """The error of a difference as a logarithm, before it is widened."""
    return math.log1p(PublishedPairs(rows).error_of(HERE, without=without).share) / WIDENING


def test_what_both_plans_are_off_by_cancels() -> None:
    """Both take half as long again as predicted, and one a hundredth more."""
    assert error(row(0.40), row(0.41)) == pytest.approx(0.01)


def test_only_runs_that_differ_in_the_plan_alone_are_pairs() -> None:
    assert error(row(0.0), row(0.1), row(0.9, question=1)) == pytest.approx(0.1)


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
    assert found.groups == 1
    assert found.tau == pytest.approx(-1 / 3)
    assert found.regret == pytest.approx(0.5)


def test_the_widening_is_what_makes_eight_of_ten_right_for_sources_that_are_not_known() -> None:
    assert WIDENING - 0.05 < published_pairs().widening() <= WIDENING
    assert SHARE == 0.8


def test_published_plans_are_mostly_in_the_order_that_is_predicted() -> None:
    found = published_order()
    assert found.groups > 30
    assert found.tau > 0.6
    assert 0 <= found.regret < 0.1
