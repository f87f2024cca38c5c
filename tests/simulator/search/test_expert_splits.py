"""Searches among plans whose experts are split over other ranks than other weights: every plan that
there is, bounds hold, and answers are the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from simulator.search.baselines import every_plan
from simulator.search.expert_splits import RUNS
from simulator.search.orders import NUMBER_OF
from simulator.search.problem import SearchProblem
from simulator.search.rings.strides import members, spans_of, strides_of
from simulator.search.space import Space, space_of
from tests.examples import few_and_many
from tests.simulator.search.answers import same_answer
from tests.simulator.search.drawn import DRAWN, LONG, MACHINES, mixtures
from tests.simulator.search.test_bounds import holds_for_one_plan
from tests.simulator.search.test_choices import TINY, without
from workload.errors import PlanCannotRunError, PlanError
from workload.grid import AXES
from workload.plan import Plan
from workload.sizes.arrays import Indices

TINY_LONG = replace(TINY, sequence=32768)  # which is split over up to 16 ranks


@st.composite
def spaces_of_other_ranks(draw: st.DrawFn) -> Space:
    """The plans of a drawn model with parts or copies of experts on other ranks."""
    gpt, tensor = draw(mixtures()), draw(st.sampled_from([1, 2, 2, 4]))
    some = [{}, {"tp": 2}, {"tp": 4}, {"tp": 1}, {"cp": 4}, {"ep": 2}, {"shard": 2}]
    fixed = {"etp": tensor} | draw(st.sampled_from([*some, {"shard": 4, "zero": 3}]))
    devices, batch = draw(st.sampled_from([4, 8, 16, 32])), draw(st.sampled_from([8, 24, 64]))
    try:
        space = space_of(SearchProblem(replace(gpt, sequence=LONG), devices, batch, fixed))
    except PlanCannotRunError:
        reject()
    x, expert = space.columns["tp"], space.columns["ep"]
    apart = (tensor != x) & ((tensor > 1) | (expert % x != 0))
    rows = np.flatnonzero(apart | ((expert > 1) & ("shard" in fixed)))
    return space.only(rows) if len(rows) else reject()


@few_and_many(
    3,
    300,
    DRAWN,
    space=spaces_of_other_ranks(),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_no_plan_with_experts_on_other_ranks_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


def test_a_space_has_every_split_of_experts_that_a_plan_can_have() -> None:
    fixed = without("order", "overlap", "tp") | {"overlap": (), "order": "tp-dp-pp"}
    for tensor in (1, 2, 4):
        problem = SearchProblem(TINY_LONG, 8, 8, fixed | {"etp": tensor})
        found = {
            (plan.tp, plan.cp, plan.dp, plan.ep, plan.sp)
            for plan in every_plan(space_of(problem))
            if plan.pp == 1
        }
        every = product((1, 2, 4, 8), *[(1, 2, 4, 8)] * 3, (False, True))
        assert found == {each for each in every if can_be(each, tensor)}


def can_be(splits: tuple[int, ...], tensor: int) -> bool:
    """Whether there is such a plan of eight ranks, and it is not another one's text."""
    x, context, data, expert, parallel = splits
    if x * context * data != 8 or (parallel and x == 1):
        return False
    try:
        Plan(
            tp=x,
            cp=context,
            dp=data,
            ep=expert,
            etp=tensor,
            sp=bool(parallel),
            batch=8,
            mbs=1,
        )
    except (PlanCannotRunError, PlanError):
        return False
    return TINY.moe.experts % expert == 0


def test_spans_are_the_strides_and_sizes_of_the_plans_grid() -> None:
    problem = SearchProblem(TINY_LONG.changed(experts=8), 32, 32, {"etp": 2, "pp": 1})
    space = space_of(problem)
    (table, which), seen = space.grids, set()
    for at in range(0, len(space), 47):
        for order in ("tp-dp-pp", "dp-cp-z-tp-y-pp"):
            shape = space.shape(at)
            plan = Plan.of(**shape, batch=32, order=order)
            spans = spans_of(table[:, [which[at]]], 0, np.array([NUMBER_OF[order]]))
            axes = {*plan.expert_tensor_axes, *plan.expert_axes, *plan.expert_copies}
            for axis in (axes if plan.folds_experts else set()) | {*AXES}:
                own = tuple(int(each[0]) for each in spans[axis])
                assert own == (plan.grid.stride(axis), plan.grid.size(axis)), (plan, axis)
            for wide in (
                ("cp", "dp"),
                ("z", "dp"),
                ("tp", "pp"),
                ("z", "cp", "dp"),
            ):
                ways, number = strides_of(spans, wide)
                found = members(ways[number[0]], 32)
                assert same_groups(found, plan.grid.groups(*wide)), (plan, wide)
            seen |= axes
    assert {"inner_tp", "outer_tp", "etp", "inner_cp", "middle_cp"} <= seen
    assert len(table) == len(AXES) + len(RUNS)


def same_groups(some: Indices, others: Indices) -> bool:
    """Whether the groups have the same members, in any order."""
    one, two = ({frozenset(group) for group in each.tolist()} for each in (some, others))
    return one == two


@pytest.mark.slow
def test_a_search_among_experts_on_other_ranks_finds_what_trying_all_plans_finds() -> None:
    fixed = without("order", "overlap", "tp") | {"overlap": (), "order": "tp-dp-pp"}
    for tensor in (1, 2):
        problem = SearchProblem(TINY, 8, 8, fixed | {"etp": tensor})
        same_answer(problem, "perlmutter")
