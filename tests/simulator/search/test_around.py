"""Walks from plan to plan, and what a whole search makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.predict import Prediction
from simulator.search import judge_of, search, usual, walked
from simulator.search.around import WORTH, Judge, Walk
from simulator.search.baselines import every_plan
from simulator.search.core import is_in_core
from simulator.search.families import family_of
from simulator.search.neighbours import KINDS, neighbours
from simulator.search.problem import SearchProblem
from simulator.search.space import spaces_of
from simulator.search.usual import OF_EACH, like, usual_families, usual_plans
from simulator.stacks import load_stack
from tests.simulator.search.answers import last, proved
from tests.simulator.search.drawn import DRAWN, MACHINES, MIXTURE, few_plans
from topologies.machine_files import load_machine
from topologies.session import Session
from workload.gpt import GPT, find_model
from workload.plan import Plan
from workload.plan_text import parse_plan

SMALL = GPT.of(name="small", layers=4, hidden=512, heads=4, ffn=2048, sequence=512, vocab=1000)
MACHINE = MACHINES["dgx-a100"]
FIXED: dict[str, Any] = {"y": 1, "z": 1, "order": "tp-dp-pp"}


def started(judge: Judge, plan: Plan) -> Prediction:
    found = judge.simulate(plan)
    assert isinstance(found, Prediction)
    return found


def test_a_walk_ends_where_no_neighbour_is_better() -> None:
    problem = SearchProblem(SMALL, 8, 32, FIXED)
    with Session():
        judge = judge_of(problem, MACHINE)
        start = started(judge, Plan(tp=4, pp=2, batch=32, mbs=1, sp=True))
        best = Walk(judge, start).run()
        assert judge.betters(best, start)
        for kind in KINDS:
            for plan in neighbours(problem, best.plan, kind):
                other = judge.simulate(plan)
                assert not (isinstance(other, Prediction) and judge.betters(other, best)), plan


def test_a_walk_from_a_plan_that_does_not_fit_ends_at_one_that_does() -> None:
    """Room for a plan that recomputes whole layers of one sequence, and for no much larger one."""
    problem = SearchProblem(SMALL, 4, 16, {**FIXED, "tp": 1, "pp": 1})
    with Session():
        frugal = Plan.of(dp=4, batch=16, mbs=1, zero=3, recompute="full")
        room = started(judge_of(problem, MACHINE), frugal).memory.peak_bytes
        judge = judge_of(problem, MACHINE, capacity_bytes=room)
        start = started(judge, Plan(dp=4, batch=16, mbs=4, zero=0))
        assert not judge.fits(start)
        assert judge.fits(Walk(judge, start).run())


def test_a_walk_keeps_to_its_family_and_its_simulations() -> None:
    problem = SearchProblem(SMALL, 8, 32, FIXED)
    with Session():
        judge = judge_of(problem, MACHINE)
        start = started(judge, Plan(tp=4, pp=2, batch=32, mbs=1, sp=True))
        walk = Walk(judge, start, family="tp+pp", most=7)
        best = walk.run()
        assert family_of(best.plan) == "tp+pp"
        assert walk.simulated <= 7
        assert {family_of(plan) for plan in walk.found} == {"tp+pp"}


def test_plans_simulated_together_lead_where_those_one_by_one_do() -> None:
    """To a plan as good, if by another way."""
    problem = SearchProblem(SMALL, 8, 32, FIXED)
    with Session():
        judge = judge_of(problem, MACHINE)
        start = started(judge, Plan(dp=8, batch=32, mbs=1))
        one, several = (Walk(judge, start, at_once=count).run() for count in (1, 8))
        assert one.step_s == pytest.approx(several.step_s, rel=3 * WORTH)


@settings(DRAWN, max_examples=4)
@given(problem=few_plans(most=12), name=st.sampled_from(sorted(MACHINES)))
def test_a_search_is_never_worse_than_what_is_proved(problem: SearchProblem, name: str) -> None:
    best = proved(problem, MACHINES[name]).best
    answer = last(search(problem, MACHINES[name]))
    assert answer.is_optimal
    assert best is not None
    assert answer.found[0].step_s <= best.step_s
    assert answer.bound <= answer.best <= best.step_s


def test_a_search_finds_plans_beyond_the_core_space() -> None:
    """Of eight stages with eight micro-batches each, DualPipeV waits less than 1F1B."""
    wide = SMALL.changed(layers=16, hidden=4096, heads=32, ffn=16384)
    fixed = {"tp": 1, "y": 1, "z": 1, "pp": 4, "mbs": 1, "zero": 0, "recompute": "none"}
    problem = SearchProblem(wide, 4, 8, fixed)
    machine = MACHINES["dgx-h100"]
    best, core = last(search(problem, machine)).found[0], proved(problem, machine).best
    assert core is not None
    assert best.step_s < core.step_s * (1 - WORTH)
    assert not is_in_core(problem, best.plan)
    assert is_in_core(problem, core.plan)


def test_the_core_space_has_the_plans_of_its_spaces_and_no_others() -> None:
    stack = load_stack("megatron-core")
    problem = SearchProblem(MIXTURE, 4, 8, {"mbs": 1, "zero": 1}, stack=stack)
    core = {plan for space in spaces_of(problem) for plan in every_plan(space)}
    assert all(is_in_core(problem, plan) for plan in core)
    some = sorted(core, key=str)[::17]
    around = {p for plan in some for kind in KINDS for p in neighbours(problem, plan, kind)}
    assert around - core
    assert {p for p in around if is_in_core(problem, p)} <= core


def test_an_answer_begins_with_the_best_plan_of_each_family() -> None:
    answer = last(search(SearchProblem(SMALL, 8, 32, FIXED), MACHINE, top=3))
    assert {*answer.families} >= {"dp", "FSDP", "tp", "pp", "tp+pp"}
    for name, each in answer.families.items():
        assert family_of(each.plan) == name
        assert each.step_s >= answer.found[0].step_s
    first = next(iter(answer.families.values()))
    assert first.plan == answer.found[0].plan


def test_a_first_answer_is_there_before_anything_is_bounded() -> None:
    states = list(search(SearchProblem(SMALL, 8, 32, FIXED), MACHINE))
    first = next(state for state in states if state.found)
    assert (first.bound, first.is_optimal) == (0, False)
    assert first.around == 1
    best = [state.best for state in states]
    assert best == sorted(best, reverse=True)


def test_usual_plans_can_be_run_and_are_few() -> None:
    for name, devices, batch, machine in (
        ("llama-3.1-70b", 64, 128, "dgx-h100"),
        ("mixtral-8x7b", 32, 64, "perlmutter"),
    ):
        problem = SearchProblem(
            find_model(name), devices, batch, stack=load_stack("megatron-core")
        ).on(MACHINES[machine])
        found = usual_plans(problem, MACHINES[machine])
        assert {"dp", "FSDP", "tp", "pp", "tp+pp"} <= {*found}
        assert all(0 < len(plans) <= OF_EACH for plans in found.values())
        for family, plans in found.items():
            for plan in plans:
                assert (plan.grid.ranks, family_of(plan)) == (devices, family)
                problem.stack.check(plan, problem.gpt)


def test_the_usual_family_of_a_size_is_that_of_published_runs() -> None:
    """NVIDIA's recipes for 70 billion parameters have tensor parallelism and a pipeline."""
    stack = load_stack("nemo")
    large = SearchProblem(find_model("llama-3.1-70b"), 512, 1024, stack=stack)
    assert [*usual_families(large)] == ["tp+pp"]
    experts = SearchProblem(find_model("deepseek-v3"), 256, 4096, stack=stack)
    assert all("ep" in family for family in usual_families(experts))
    assert usual_families(SearchProblem(find_model("gpt-640b"), 32768, 8192)) == {}


def test_a_published_plan_is_tried_as_it_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the layers of its stages, and with overlaps that its stack does not turn on itself."""
    monkeypatch.setattr(usual, "OF_EACH", usual.TRIED)
    stack = load_stack("nemo+deepep+fused-experts+graphs=full")
    problem = SearchProblem(find_model("deepseek-v3"), 256, 4096, stack=stack)
    tried = usual_plans(problem, load_machine("gb200-nvl72"))["pp+ep"]
    uneven = [plan for plan in tried if plan.pipeline.stage_layers == (*[4] * 15, 1)]
    assert any({"a2a", "wgrad"} <= {*plan.training.overlap} for plan in uneven)
    assert any("a2a" not in plan.training.overlap for plan in uneven)


def test_published_runs_of_like_sequences_are_the_nearest() -> None:
    gpt = find_model("llama-3.1-8b")
    for sequence in (8192, 131072):
        asked = SearchProblem(replace(gpt, sequence=sequence), 32, 64, stack=load_stack("nemo"))
        found = like(asked)
        assert [far for far, _ in found] == sorted(far for far, _ in found)
        assert sequence / 2 <= found[0][1].sequence <= 2 * sequence


def test_of_plans_in_the_order_of_their_bounds_none_behind_the_first_is_tried() -> None:
    problem = SearchProblem(SMALL, 8, 32, FIXED).on(MACHINE)
    judge = judge_of(problem, MACHINE)
    plans = tuple(parse_plan(text) for text in ("pp=4,dp=2,batch=32", "dp=8,batch=32"))
    with Session():
        _, count, _ = walked(judge, True, (plans, "pp", 1))
        found, every, _ = walked(judge, False, (plans, "pp", 1))
    assert every == count + 1
    assert {*plans} <= {each.plan for each in found}
