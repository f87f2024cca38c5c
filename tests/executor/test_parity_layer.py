"""What a plan does inside a layer, and dropout, against the plain model: all options in pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from executor.groups import ProcessGroups
from tests.executor import parity_cases
from tests.executor.ranks import TIMEOUT_S, on_ranks_in_turn
from tests.executor.test_parity import (
    TINY,
    TOLERANCE,
    differences,
    grids,
    plan_of,
)
from tests.executor.test_parity_models import TOGETHER
from tests.executor.test_parity_pipe import plan_of as pipe_plan
from workload.gpt import GPT
from workload.plan import Plan

Case = tuple[GPT, Plan]
Row = dict[str, Any]

MODELS = {"GPT": TINY, **TOGETHER}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "recompute": ("none", "selective", "full:1", "full"),
    "attention": ("flash", "unfused"),
    "dropout": (0.0, 0.2),
    "sp": (False, True),
    "overlap": (True, False),
    "micro_batches": (1, 2),
}


def pairwise(seed: int, options: dict[str, tuple[Any, ...]] = OPTIONS) -> list[Row]:
    """Few rows in which every two options meet in all their values; another seed, other rows."""
    every = [
        dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())
    ]
    random.Random(seed).shuffle(every)
    missing = {pair for row in every for pair in pairs(row)}
    rows = []
    while missing:
        rows.append(max(every, key=lambda row: len(missing & set(pairs(row)))))
        missing -= set(pairs(rows[-1]))
    return rows


def pairs(row: Row) -> Iterator[Any]:
    return itertools.combinations(row.items(), 2)


def case(grid: tuple[int, ...], row: Row) -> Case:
    """The model and the plan of a row; where y splits the stream, its rows stay whole."""
    plan = plan_of(grid, row["overlap"], row["recompute"], row["micro_batches"])
    rows = row["sp"] and plan.y == 1
    plan = plan.changed(attention=row["attention"], sp=rows)
    return replace(MODELS[row["model"]], dropout=row["dropout"]), plan


def some(ranks: int, count: int) -> list[Case]:
    """Rows of one covering set on the grids in turn, those with rows that x can split first."""
    chosen = sorted(grids(ranks), key=lambda grid: grid[1] > 1 or grid[0] == 1)
    return [case(*each) for each in zip(itertools.cycle(chosen), pairwise(ranks)[:count])]


def every_case(ranks: int) -> list[Case]:
    """Every grid with a covering set of its own; many grids share one that covers them too."""
    every = grids(ranks)
    if len(every) <= 10:
        return [case(grid, row) for n, grid in enumerate(every) for row in pairwise(n)]
    rows = pairwise(0, {"grid": tuple(every), **OPTIONS})
    return [case(row["grid"], row) for row in rows]


def errors_of(rank: int, cases: Iterable[Case]) -> list[tuple[float, float]]:
    groups = ProcessGroups(rank, TIMEOUT_S)
    return [differences(rank, gpt, [plan], groups=groups)[0] for gpt, plan in cases]


def check(ranks: int, cases: list[Case]) -> None:
    found = on_ranks_in_turn(ranks, errors_of, cases)
    parity_cases.note(ranks, [plan for _, plan in cases], found)
    wrong = [
        (gpt.name, gpt.dropout, str(plan), errors)
        for (gpt, plan), errors in zip(cases, found, strict=True)
        if max(errors) > TOLERANCE
    ]
    assert wrong == []


def test_a_covering_set_has_every_pair_of_values() -> None:
    rows = pairwise(0)
    for (one, firsts), (two, seconds) in itertools.combinations(OPTIONS.items(), 2):
        found = {(row[one], row[two]) for row in rows}
        assert found == set(itertools.product(firsts, seconds))


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("ranks", "count"), [(1, 3), (2, 1), pytest.param(4, 2, marks=pytest.mark.slow)]
)
def test_options_inside_a_layer_train_as_the_plain_model_does(ranks: int, count: int) -> None:
    check(ranks, [(replace(gpt, layers=1), plan) for gpt, plan in some(ranks, count)])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_options_inside_the_layers_of_a_pipeline_train_as_the_plain_model_does() -> None:
    rows: dict[str, Any] = {"tp": 2, "pp": 2, "sp": True}
    deep, llama = (replace(gpt, layers=4, dropout=0.2) for gpt in (TINY, MODELS["Llama"]))
    plans = [
        pipe_plan(**rows, attention="unfused", recompute="selective"),
        pipe_plan(**rows, schedule="zb-h1"),
        pipe_plan(**rows, vpp=2, recompute="full:1"),
        pipe_plan(**rows, schedule="zb-2p", attention="unfused", recompute="selective", overlap=()),
        pipe_plan(**rows, schedule="gpipe", recompute="full"),
        pipe_plan(pp=4, attention="unfused", recompute="full:1"),
    ]
    check(4, [*itertools.product((deep, llama), plans)])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_grid_with_every_pair_of_options_trains_as_the_plain_model_does(ranks: int) -> None:
    check(ranks, every_case(ranks))
