"""The ranking of published plans: which runs are one group, what ties count, and what we pick."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from simulator.uncertainty.ranking import ranked
from validation.published.outcome import PREDICTED, Outcome
from validation.published.plan_ranking import rankings
from validation.published.runs import PublishedRun

SAME = ("source", "machine", "gpu", "framework", "model", "gpus_total", "seq_len", "precision")


def outcome(
    name: str,
    predicted_s: float,
    measured_s: float,
    *,
    formula_s: float | None = None,
    unscored: str = "",
    plan: str = "",
    cells: Mapping[str, str] = {},
) -> Outcome:
    return Outcome(
        PublishedRun({"id": name, "source": "A", "global_batch_seqs": "16", **cells}),
        PREDICTED,
        plan=plan,
        measured_s=measured_s,
        predicted_s=predicted_s,
        formula_s=formula_s,
        unscored=unscored,
    )


def test_plans_of_unlike_batches_are_ranked_by_the_time_of_a_sequence() -> None:
    """Steps of 10 s throughout, of which those of more sequences are the faster ones."""
    found = rankings(
        [
            outcome("a", 10.0, 20.0, cells={"global_batch_seqs": "10"}),  # 1 and 2 s a sequence
            outcome("b", 10.0, 16.0, cells={"global_batch_seqs": "20"}),  # 0.5 and 0.8 s
            outcome("c", 10.0, 24.0, cells={"global_batch_seqs": "40"}),  # 0.25 and 0.6 s
        ]
    )
    assert found is not None
    assert (found.groups, found.tau, found.regret) == (1, 1.0, 0.0)


@pytest.mark.parametrize("column", SAME)
def test_runs_that_differ_in_more_than_the_plan_are_ranked_apart(column: str) -> None:
    times = ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0))
    found = rankings(
        [
            outcome(f"{value}-{n}", predicted, measured, cells={column: value})
            for value in ("1", "2")
            for n, (predicted, measured) in enumerate(times)
        ]
    )
    assert found is not None
    assert found.groups == 2


def test_rows_that_are_not_scored_are_not_ranked() -> None:
    rows = [outcome("a", 1.0, 1.0), outcome("b", 2.0, 2.0)]
    strange = outcome("c", 3.0, 0.1, unscored="half of a step")
    assert rankings([*rows, strange]) is None
    found = rankings([*rows, outcome("d", 3.0, 3.0), strange])
    assert found is not None
    assert (found.tau, found.regret) == (1.0, 0.0)


def test_the_formula_is_ranked_by_its_own_times() -> None:
    rows = [outcome(f"{n}", n, n, formula_s=4.0 - n) for n in (1.0, 2.0, 3.0)]
    ours, formula = rankings(rows), rankings(rows, formula=True)
    assert ours is not None
    assert formula is not None
    assert (ours.tau, ours.regret) == (1.0, 0.0)
    assert (formula.tau, formula.regret) == (-1.0, 2.0)


def test_ties_count_as_in_kendalls_tau_b_and_of_tied_picks_the_mean() -> None:
    """Two of three pairs agree, one is tied in the predictions: 2 / sqrt(2 * 3). Of the plans of
    10 and 20 s either may be picked, and takes 15 s on average: half as long again as the best."""
    found = ranked([(1.0, 10.0), (1.0, 20.0), (2.0, 30.0)])
    assert found.tau == pytest.approx(2 / math.sqrt(6))
    assert found.regret == pytest.approx(0.5)


def test_a_plan_that_ran_several_times_counts_once_among_plans() -> None:
    """Plan a is predicted at 1 s throughout and was measured at 1, 2 and 9 s: its median, 2 s, is
    the fastest, so the plans' order is right. The run of 9 s is in the wrong order
    with b and c: of 10 pairs the 3 within plan a are tied in the predictions, and 5 of the other 7
    agree."""
    runs = [outcome(f"a{n}", 1.0, measured, plan="a") for n, measured in enumerate((1.0, 2.0, 9.0))]
    others = [outcome("b", 2.0, 3.0, plan="b"), outcome("c", 3.0, 4.0, plan="c")]
    found = rankings([*runs, *others])
    assert found is not None
    assert found.tau == pytest.approx((5 - 2) / math.sqrt(7 * 10))
    assert (found.plan_groups, found.plan_tau) == (1, 1.0)
    alone = rankings(runs)
    assert alone is not None
    assert (alone.groups, alone.plan_groups, alone.plan_tau) == (1, 0, None)
