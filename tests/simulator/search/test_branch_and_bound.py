"""The search: what it finds is what trying everything finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st

from simulator.predict import predict
from simulator.search import best_plan, search
from simulator.search.baselines import by_axonn, every_plan, exhaustive, kendall_tau
from simulator.search.objective import OBJECTIVES
from simulator.search.problem import SearchProblem
from simulator.search.space import space_of
from tests.examples import few_and_many
from tests.messages import names
from tests.simulator.search.answers import last, proved, same_answer
from tests.simulator.search.drawn import DRAWN, MACHINES, few_plans
from topologies.placement import Placement, contiguous
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.grid import AXES
from workload.plan_text import parse_plan

SMALL = GPT.of(name="small", layers=4, hidden=512, heads=4, ffn=2048, sequence=512, vocab=1000)


@few_and_many(
    3,
    200,
    DRAWN,
    slow={"problem": few_plans()},
    problem=few_plans(most=12),
    name=st.sampled_from(sorted(MACHINES)),
    objective=st.sampled_from(OBJECTIVES),
)
def test_a_search_finds_what_trying_all_plans_finds(
    problem: SearchProblem, name: str, objective: str
) -> None:
    same_answer(problem, name, objective)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_sum_of_more_gradients_may_be_faster_than_one_of_less(positions: str) -> None:
    """On Kestrel NCCL changes its algorithm between a stage's layers and all of its parameters."""
    fixed = {"tp": 1, "y": 1, "z": 1, "overlap": (), "zero": 0, "recompute": "none"}
    gpt = replace(SMALL, layers=2, hidden=64, ffn=128, sequence=8192, vocab=3500, tied=False)
    problem = SearchProblem(replace(gpt, positions=positions), 32, 32, fixed)
    same_answer(problem, "kestrel")


@pytest.mark.slow
def test_bounds_only_rise_and_the_best_only_falls() -> None:
    problem = SearchProblem(SMALL, 8, 16, {"recompute": "none"})
    states = list(search(problem, MACHINES["perlmutter"]))
    for before, after in pairwise(states):  # one from beyond the core space may be below its bound
        assert after.bound >= min(before.bound, after.best)
    best = [state.found[0].step_s for state in states if state.found]
    assert best == sorted(best, reverse=True)
    assert all(state.gap >= 0 for state in states)
    assert states[-1].gap == 0
    assert not states[0].is_optimal


@pytest.mark.slow
def test_a_smaller_device_gets_the_fastest_plan_that_fits_it() -> None:
    problem = SearchProblem(SMALL, 4, 8, {"overlap": (), "schedule": "1f1b"})
    machine = MACHINES["frontier"]
    everything = last(exhaustive(problem, machine, top=10**6)).found
    room = sorted(each.memory.peak_bytes for each in everything)[len(everything) // 3]
    tree = proved(problem, machine, capacity_bytes=room)
    fits = [each.step_s for each in everything if each.memory.peak_bytes <= room]
    assert tree.best is not None
    assert tree.best.step_s == min(fits)
    assert len(fits) <= tree.tally.fitting <= tree.plans == space_of(problem).plans


def test_a_plan_that_only_its_simulation_shows_to_be_a_byte_too_large_is_not_found() -> None:
    """Bounds of memory leave out what gathers ahead of their layers hold."""
    machine = MACHINES["frontier"]
    plan = parse_plan("z=4,mbs=1,recompute=full,overlap=oag+ors", batch=8)
    fixed = {key: plan.value(key) for key in (*AXES, "recompute", "overlap", "mbs")}
    problem = SearchProblem(SMALL, 4, 8, {**fixed, "zero": 0, "sp": False})
    peak = predict(SMALL, plan, machine).memory.peak_bytes
    fits = proved(problem, machine, capacity_bytes=peak).best
    assert fits is not None
    assert fits.plan == plan
    larger = proved(problem, machine, capacity_bytes=peak - 1)
    assert (larger.plans, larger.simulated, larger.best) == (1, 1, None)


def test_of_plans_that_take_equally_long_the_one_with_the_shortest_text_comes_first() -> None:
    """Of one micro-batch gpipe makes what 1f1b, the default, makes; and so do all zero bubbles."""
    fixed = {"tp": 1, "y": 1, "z": 1, "pp": 2, "mbs": 2, "overlap": (), "zero": 0}
    problem = SearchProblem(SMALL, 2, 2, {**fixed, "recompute": "none"})
    best = proved(problem, MACHINES["frontier"]).best
    assert best is not None
    assert best.plan.pipeline.schedule == "zb-1p"
    same_answer(problem, "frontier")


def test_the_steps_found_are_those_of_the_ranks_where_they_are_placed() -> None:
    """Two ranks on one node, and with a node for each."""
    machine, plan = MACHINES["frontier"], parse_plan("tp=2,mbs=2,overlap=none", batch=2)
    named = (*AXES, "overlap", "recompute", "zero", "sp")
    fixed = {key: plan.value(key) for key in named}
    apart = Placement(node=np.arange(2), device=np.zeros(2, dtype=np.int64))
    steps = []
    for placement in (contiguous(machine, 2), apart):
        best = best_plan(SMALL, machine, 2, 2, fixed=fixed, placement=placement)
        assert best.step_s == predict(SMALL, best.plan, machine, placement=placement).step_s
        steps.append(best.step_s)
    assert steps[1] > 1.1 * steps[0]


def test_where_nothing_fits_nothing_is_found() -> None:
    problem = SearchProblem(SMALL, 4, 8, {"overlap": (), "schedule": "1f1b", "recompute": "none"})
    answer = last(search(problem, MACHINES["frontier"], capacity_bytes=1000))
    assert (answer.found, answer.fitting, answer.is_optimal) == ((), 0, True)
    tree = proved(problem, MACHINES["frontier"], capacity_bytes=1000)
    assert (tree.best, tree.simulated) == (None, 0)
    with pytest.raises(PlanCannotRunError, check=names("gpt-640b")):
        best_plan(find_model("gpt-640b"), MACHINES["perlmutter"], 4, 4)


@pytest.mark.slow
def test_pipelines_that_miss_by_memory_alone_are_not_simulated() -> None:
    problem = SearchProblem(SMALL, 4, 8, {"pp": 2, "overlap": (), "schedule": "1f1b", "zero": 0})
    machine = MACHINES["frontier"]
    everything = last(exhaustive(problem, machine, top=10**6)).found
    least = min(each.memory.peak_bytes for each in everything)
    tree = proved(problem, machine, capacity_bytes=least - 1)
    assert (tree.best, tree.simulated) == (None, 0)
    assert proved(problem, machine, capacity_bytes=least).best is not None


@pytest.mark.slow
def test_two_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.search.branch_and_bound.WORTH", 1)
    fixed = {"recompute": "none", "schedule": "1f1b", "zero": 0, "overlap": (), "y": 1}
    problem = SearchProblem(SMALL, 4, 8, fixed)
    one, two = (
        last(search(problem, MACHINES["alps"], top=3, workers=workers)) for workers in (1, 2)
    )
    assert one.found == two.found
    assert [*one.families] == [*two.families]
    assert (one.considered, one.fitting, one.around) == (two.considered, two.fitting, two.around)


@pytest.mark.slow
def test_axonns_model_ranks_by_its_communication_and_tau_tells_how_well() -> None:
    gpt = find_model("gpt-5b")
    ranked = by_axonn(SearchProblem(gpt, 64, 64), MACHINES["perlmutter"], top=6)
    seconds = [each.communication_s for each in ranked]
    assert seconds == sorted(seconds)
    assert all(each.prediction.memory.fits for each in ranked)
    assert -1 <= kendall_tau(ranked) <= 1
    in_order = sorted(ranked, key=lambda each: each.prediction.step_s)
    pairs = len(ranked) * (len(ranked) - 1) / 2
    found = [each.communication_s for each in in_order]
    swaps = sum(a > b for at, a in enumerate(found) for b in found[at:])
    assert kendall_tau(ranked) == pytest.approx(1 - 2 * swaps / pairs)


def test_every_plan_of_a_space_is_as_many_as_it_says() -> None:
    space = space_of(SearchProblem(SMALL, 4, 8))
    assert sum(1 for _ in every_plan(space)) == space.plans


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MACHINES)[:2])
def test_a_search_finds_the_best_with_experts_beside_a_shared_mlp(name: str) -> None:
    gpt = SMALL.changed(experts=4, topk=2, expert_ffn=512, shared_ffn=512, biases=False)
    fixed = {"order": "tp-dp-pp", "recompute": "none", "sp": False}
    alone = {"tp": 1, "y": 1, "z": 1, "pp": 1, "mbs": 1}
    same_answer(SearchProblem(gpt, 2, 4, {**fixed, **alone}), name)
