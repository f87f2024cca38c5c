"""All options of plans at once against the plain model: every pair of values, and random plans."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.executor.covering import (
    OPTIONS,
    Case,
    case,
    covering,
    every_pair,
    is_legal,
    is_refused,
    pairs,
    ranks_of,
)
from tests.executor.test_parity_layer import check
from workload.grid import AXES

# With so few options in play these cannot meet: a shard needs dp=2, chunks in turns as many
# micro-batches as stages.
TOO_MANY = {
    (("pp", 8), ("vpp", 2)),
    (("pp", 8), ("vpp", 3)),
    (("pp", 8), ("shard", 2)),
}


def rows_by_ranks(most: int) -> dict[int, list[Case]]:
    """The cases of a covering set by how many ranks each has."""
    found: dict[int, list[Case]] = {}
    for row in covering(most):
        found.setdefault(ranks_of(row), []).append(case(row))
    return found


@pytest.mark.slow
def test_every_pair_of_values_is_covered_or_refused() -> None:
    covered = {pair for row in covering(8) for pair in pairs(row)}
    missing = {pair for pair in every_pair() if pair not in covered}
    impossible = {p for p in missing if ranks_of(dict(p)) > 8 or is_refused(dict(p))}
    assert missing - impossible == TOO_MANY


@pytest.mark.slow
def test_a_pair_that_is_refused_is_never_covered() -> None:
    for row in covering(8):
        assert not is_refused(row)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("most", [4, 8])
def test_every_pair_of_options_trains_as_the_plain_model_does(most: int) -> None:
    for ranks, cases in rows_by_ranks(most).items():
        check(ranks, cases)


@st.composite
def batches_of_cases(draw: st.DrawFn, count: int) -> tuple[int, list[Case]]:
    """So many random plans of one number of ranks."""
    ranks = draw(st.sampled_from([1, 2, 4]))
    return ranks, [case(draw(legal_rows(ranks))) for _ in range(count)]


def legal_rows(ranks: int) -> st.SearchStrategy[dict[str, Any]]:
    """Rows of all options with just so many ranks."""
    sizes = [n for n in (1, 2, 4) if n <= ranks]
    grids = [grid for grid in _grids(sizes) if prod(grid) == ranks]
    rest = {name: st.sampled_from(OPTIONS[name]) for name in OPTIONS if name not in AXES}
    axes = st.sampled_from(grids).map(lambda grid: dict(zip(AXES, grid, strict=True)))
    return st.builds(dict.__or__, axes, st.fixed_dictionaries(rest)).filter(
        lambda row: not is_refused(row) and is_legal(row)
    )


def _grids(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    grids: list[tuple[int, ...]] = [()]
    for _ in AXES:
        grids = [(*grid, size) for grid in grids for size in sizes]
    return grids


# Ranks are started once for a batch of plans; a smaller batch would say nothing new.
RANDOM = settings(
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@pytest.mark.distributed
@settings(RANDOM, max_examples=1)
@given(batches_of_cases(2))
def test_random_plans_train_as_the_plain_model_does(batch: tuple[int, list[Case]]) -> None:
    check(*batch)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(RANDOM, max_examples=12)
@given(batches_of_cases(20))
def test_many_random_plans_train_as_the_plain_model_does(batch: tuple[int, list[Case]]) -> None:
    check(*batch)
