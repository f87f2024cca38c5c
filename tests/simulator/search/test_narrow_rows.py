"""Rows in 8 bits on their way to experts, in a search: tried where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.predict import predict
from simulator.search import search
from simulator.search.baselines import every_plan
from simulator.search.problem import SearchProblem
from simulator.search.space import spaces_of
from simulator.stacks import EXECUTOR
from simulator.stacks.stack import Stack
from tests.messages import names
from tests.simulator.search.drawn import MACHINES
from tests.simulator.search.test_branch_and_bound import SMALL, last
from tests.simulator.search.test_choices import FEW, NARROW, TINY
from topologies.machine_files import with_settings
from workload.errors import PlanCannotRunError, PlanError
from workload.plan import Plan

ALSO: dict[str, tuple[str, ...]] = {"fp8_dispatch": ("true",)}
MACHINE = with_settings(MACHINES["perlmutter"], NARROW)


def experts(**fixed: Any) -> SearchProblem:
    also = {} if "fp8_dispatch" in fixed else ALSO
    return SearchProblem(TINY, 8, 16, FEW | {"tp": 1, "recipe": "mxfp8"} | fixed, also=also)


def plans_of(problem: SearchProblem) -> list[Plan]:
    return [plan for space in spaces_of(problem) for plan in every_plan(space)]


def finds_the_best(problem: SearchProblem, stack: Stack = EXECUTOR, top: int = 3) -> list[Plan]:
    """The plans found, whose steps are the shortest of all plans."""
    plans = plans_of(problem)
    found = last(search(problem, MACHINE, top=top))
    assert found.considered == len(plans)
    steps = sorted(predict(problem.gpt, plan, MACHINE, stack=stack).step_s for plan in plans)
    assert [each.step_s for each in found.found] == steps[:top]
    return [each.plan for each in found.found]


def test_rows_in_8_bits_are_tried_beside_those_in_16_where_rows_are_sent() -> None:
    plans = plans_of(experts())
    found = {(plan.ep > 1, plan.fp8_dispatch) for plan in plans}
    assert found == {(False, False), (True, False), (True, True)}
    sent = [plan for plan in plans if plan.fp8_dispatch]
    assert len(sent) == len([plan for plan in plans if plan.ep > 1]) / 2
    kept = plans_of(experts(fp8_dispatch=True))
    assert {*kept} == {*sent}


@pytest.mark.slow
def test_of_rows_in_8_and_in_16_bits_the_fastest_is_found() -> None:
    """Long sequences, whose rows take longer to send than to cast."""
    long = replace(experts(ep=8), gpt=replace(TINY, sequence=16384))
    best, other, *_ = finds_the_best(long, top=2)
    assert (best.fp8_dispatch, other.fp8_dispatch) == (True, False)


def test_of_several_precisions_those_with_scales_of_blocks_send_so() -> None:
    problem = experts(ep=4)
    fixed = {key: value for key, value in problem.fixed.items() if key != "recipe"}
    several: dict[str, tuple[str, ...]] = {"dispatcher": ("usual", "all_gather")}
    several |= {"precision": ("bf16", "fp8-tensorwise", "mxfp8")}
    plans = plans_of(replace(problem, fixed=fixed, several=several))
    found = {(plan.recipe, plan.dispatcher) for plan in plans if plan.fp8_dispatch}
    assert found == {("mxfp8", "usual")}
    assert len({plan.recipe for plan in plans}) == 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_searches_over_rows_in_8_bits_find_what_trying_all_plans_finds() -> None:
    finds_the_best(experts(), top=4)
    finds_the_best(replace(experts(pp=2), several={"dispatcher": ("usual", "once_per_node")}))


def test_what_cannot_send_so_is_refused_by_name() -> None:
    with pytest.raises(PlanError, check=names("recipe=fp8-blockwise", "mxfp8")):
        experts(recipe="fp8-tensorwise")
    with pytest.raises(PlanError, check=names("small")):
        SearchProblem(SMALL, 8, 16, {"recipe": "mxfp8"}, also=ALSO)
    for fixed in ({"fp8_dispatch": True}, {}):
        with pytest.raises(PlanError, check=names("dispatcher=all_gather")):
            experts(**fixed, dispatcher="all_gather")
    with pytest.raises(PlanError, check=names("fp8_dispatch=false")):
        replace(experts(fp8_dispatch=False), also=ALSO)
    fixed = {key: value for key, value in FEW.items() if key != "recipe"}
    both = {"precision": ("bf16", "mxfp8")}
    with pytest.raises(PlanError, check=names("recipe=fp8-blockwise", "mxfp8", "bf16")):
        SearchProblem(TINY, 8, 16, fixed | {"fp8_dispatch": True}, several=both)


def test_where_no_plan_splits_experts_none_sends_rows() -> None:
    for problem in (experts(ep=1), replace(experts(), devices=1, batch=4)):
        with pytest.raises(PlanCannotRunError, check=names("fp8_dispatch=true")):
            spaces_of(problem)
