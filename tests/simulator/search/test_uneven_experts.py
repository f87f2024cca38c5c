"""Searches of models whose experts are chosen unevenly: bounds, answers, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from simulator.predict import predict
from simulator.search import best_plan, search
from simulator.search.bounds.batched_programs import kinds
from simulator.search.problem import SearchProblem, unproved
from simulator.search.space import Space, space_of
from tests.examples import few_and_many
from tests.messages import assert_names
from tests.simulator.search.answers import last, same_answer
from tests.simulator.search.drawn import DRAWN, MACHINES, mixtures, spaces
from tests.simulator.search.test_bounds import holds_for_one_plan
from topologies.machine_files import load_machine
from workload.expert_loads.histogram import (
    Histogram,
    LeastUneven,
    RoutedGPT,
    balanced,
    expert_layers,
    least_uneven,
    routed,
)
from workload.gpt import GPT
from workload.models.mtp import every_layer

FOUR = GPT.of(
    name="four",
    layers=2,
    hidden=512,
    heads=4,
    ffn=2048,
    sequence=512,
    vocab=1000,
    biases=False,
    activation="swiglu",
    experts=4,
    topk=1,
    expert_ffn=4096,
)
SKEWED, OTHER = (5, 1, 1, 1), (1, 1, 3, 1)
FEW: dict[str, Any] = {
    "y": 1,
    "z": 1,
    "overlap": ("dp",),
    "order": "tp-dp-pp",
    "recompute": "none",
    "zero": 1,
    "schedule": "1f1b",
}


def with_counts(*layers: tuple[int, ...], gpt: GPT = FOUR) -> RoutedGPT:
    return routed(gpt, Histogram(layers))


@st.composite
def uneven_mixtures(draw: st.DrawFn) -> GPT:
    """Models with experts, chosen alike in all layers or differently in each."""
    gpt = draw(mixtures(layers=(2, 3, 5, 12)))
    counts = st.lists(st.integers(1, 40), min_size=gpt.moe.experts, max_size=gpt.moe.experts).map(
        tuple
    )
    alike = draw(st.booleans())
    own = draw(counts) if alike else ()
    if not (having := expert_layers(gpt)):
        return gpt
    layers = ((own or draw(counts)) if n in having else () for n in every_layer(gpt))
    return routed(gpt, Histogram(tuple(layers)))


@few_and_many(
    2,
    200,
    DRAWN,
    slow={"space": spaces(gpts=uneven_mixtures()), "name": st.sampled_from(sorted(MACHINES))},
    space=spaces(devices=(4, 8, 16), gpts=uneven_mixtures()),
    name=st.sampled_from(["perlmutter", "alps"]),
    data=st.data(),
)
def test_no_plan_of_unevenly_chosen_experts_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


@pytest.mark.slow
def test_a_search_with_a_histogram_finds_what_trying_all_plans_finds() -> None:
    """Of experts that are chosen alike in both layers, on four devices."""
    fixed = {**FEW, "mbs": 1, "pp": 1, "dispatcher": "usual"}
    same_answer(SearchProblem(with_counts(SKEWED, SKEWED), 4, 16, fixed), "dgx-h100")


def test_of_layers_whose_experts_are_chosen_differently_no_bounds_are_known() -> None:
    """Of those that are chosen alike there are some, and of places of a capacity."""
    fixed = {**FEW, "mbs": 1, "pp": 1, "tp": 1, "dispatcher": "usual"}
    differing = SearchProblem(with_counts(SKEWED, OTHER), 4, 16, fixed)
    machine = MACHINES["dgx-h100"]
    assert_names(unproved(differing, machine), "chosen differently")
    for gpt in (with_counts(SKEWED, SKEWED), FOUR, differing.gpt.changed(capacity=1.0)):
        assert not unproved(replace(differing, gpt=gpt), machine)
    answer = last(search(differing, machine))
    assert (answer.is_optimal, bool(answer.found), bool(answer.unproved)) == (False, True, True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["perlmutter", "frontier"])
def test_a_search_of_more_plans_finds_what_trying_them_finds(name: str) -> None:
    gpt = with_counts(SKEWED, SKEWED).changed(topk=2)
    problem = SearchProblem(gpt, 8, 16, {**FEW, "dispatcher": "usual"})
    same_answer(problem, name)


@pytest.mark.slow
def test_experts_that_are_chosen_unevenly_enough_are_split_over_fewer_ranks() -> None:
    """On four devices eight whole experts are split over four ranks. Where three of four rows go to
    one of these, two ranks wait less; each step is that of its own prediction. With each expert
    split over ranks, as a search finds where it may, none would wait."""
    gpt = FOUR.changed(layers=4, hidden=2048, heads=16, experts=8, expert_ffn=4096)
    fixed = {**FEW, "mbs": 1, "pp": 1, "tp": 1, "etp": 0}
    skewed = routed(gpt, Histogram(((6, 6, 0, 0, 1, 1, 1, 1),) * 4))
    machine = load_machine("dgx-h100")
    even, uneven = (best_plan(each, machine, 4, 256, fixed=fixed) for each in (gpt, skewed))
    assert (even.plan.ep, uneven.plan.ep) == (4, 2)
    again = predict(skewed, uneven.plan, machine)
    assert (again.step_s, again.load) == (uneven.step_s, uneven.load)
    assert predict(skewed, even.plan, machine).step_s > uneven.step_s


def test_a_bound_counts_all_layers_as_the_least_uneven_for_each_number_of_ranks() -> None:
    """Of two ranks the first has 6/8 in one layer and 2/6 or 4/6 in the other; of four 5/8, 3/6."""
    gpt = least_uneven(with_counts(SKEWED, OTHER))
    assert isinstance(gpt, RoutedGPT)
    assert isinstance(gpt.histogram, LeastUneven)
    assert [gpt.histogram.over_mean(0, ranks) for ranks in (1, 2, 4)] == [1, 4 / 3, 2]
    assert least_uneven(FOUR) == balanced(gpt) == FOUR


def test_plans_that_split_experts_over_other_numbers_of_ranks_are_lowered_apart() -> None:
    """Two and four ranks of eight that have others beside them run the same ops, but the busiest
    has another share of the rows."""
    gpt = FOUR.changed(experts=8)
    problem = SearchProblem(gpt, 8, 16, {**FEW, "tp": 1, "pp": 1, "mbs": 1})
    skewed = replace(problem, gpt=routed(gpt, Histogram(((1,) * 8,) * 2)))
    apart = [_numbers_of_ranks(space_of(each)) for each in (problem, skewed)]
    assert apart == [[{1}, {2, 4}, {8}], [{1}, {2}, {4}, {8}]]


def _numbers_of_ranks(space: Space) -> list[set[int]]:
    """Over how many ranks experts are split, of plans that are lowered together."""
    every = kinds(space, np.arange(len(space), dtype=np.int64))
    return sorted((set(space.columns["ep"][rows].tolist()) for rows in every), key=min)
