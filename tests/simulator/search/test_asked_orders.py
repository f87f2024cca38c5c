"""Hidden all-to-alls and schedules in a V, which a search tries where they are asked for: bounds
hold, and answers are the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_ticks
from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from simulator.search.asked.exchanges import EXCHANGES, IN_TURNS
from simulator.search.asked.turns import least_ticks
from simulator.search.baselines import every_plan
from simulator.search.bounds.batched_programs import placed, sized
from simulator.search.bounds.in_flight import entry_bytes
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import part_times
from simulator.search.bounds.peak_memory import pipeline_bytes
from simulator.search.bounds.stream_bound import SCHEDULES, BusiestStream, Entries
from simulator.search.orders import ORDERS, overlaps
from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import entries_of, least_bytes_of
from simulator.search.space import Order, Space, space_of, spaces_of
from simulator.stacks import load_stack
from tests.examples import few_and_many
from tests.messages import names
from tests.simulator.search.drawn import DRAWN, FIELDS, MACHINES, UNSHRUNK, mixtures, models
from tests.simulator.search.test_bounds import holds_for_one_plan
from tests.simulator.search.test_branch_and_bound import SMALL, same_answer
from tests.simulator.search.test_choices import FEW, TINY, without
from workload.errors import PlanCannotRunError, PlanError
from workload.op import COMPUTE
from workload.pipeline.schedule import STRAIGHT

WITH_RECIPES = sorted({*FIELDS} - {"precision"})


@st.composite
def spaces_in_turns(draw: st.DrawFn) -> Space:
    """The plans of a drawn model with experts that hide their all-to-alls."""
    gpt = draw(mixtures(layers=(2, 3, 5, 8, 12, 24)))
    beside = draw(st.sampled_from([("a2a",), ("wgrad",), ("a2a", "wgrad")]))
    devices, batch = draw(st.sampled_from([2, 4, 8, 16])), draw(st.sampled_from([16, 32, 64]))
    few = draw(st.sampled_from([{}, {"pp": 1}, {"pp": 2}, {"pp": 2}, {"pp": 4}]))
    more: dict[str, Any] = draw(
        st.sampled_from([{}, {"mbs": 1}, {"zero": 1}, {"recompute": "full"}])
    )
    problem = SearchProblem(gpt, devices, batch, few | more, beside=beside)
    try:
        return space_of(problem)
    except PlanCannotRunError:
        reject()


def holds_in_turns(space: Space, name: str, data: st.DataObject) -> None:
    """As for other plans, but that slots have no times of their own."""
    problem, machine = space.problem, MACHINES[name]
    row = data.draw(st.integers(0, len(space) - 1))
    rows = np.array([row])
    fabric = MachineFabric(machine, problem.devices)
    costs = compute_costs(machine, fabric.ranks_per_node, problem.devices)
    op_bounds = OpBounds(space, costs, fabric)
    entries = data.draw(st.sampled_from(list(entries_of(space, rows))))
    at = data.draw(st.integers(0, len(entries.lane) - 1))
    entries = entries.only(np.arange(len(entries.lane)) == at, np.zeros(1, dtype=np.int64))
    overlap = data.draw(st.sampled_from(overlaps(problem, space.shape(row))))
    ranks = data.draw(st.sampled_from(space.rank_orders(row)))
    schedule = SCHEDULES[int(entries.schedule[0])]
    plan = space.plan(row, Order(schedule, int(entries.vpp[0]), overlap, ranks))
    prediction = predict(problem.gpt, plan, machine)
    some = next(sized(space, rows))
    in_order = placed(some, np.zeros(1, dtype=np.int64), np.array([ORDERS.index(ranks)]))
    for each, known in ((some, None), (some, overlap), (in_order, overlap)):
        busiest = BusiestStream(part_times(op_bounds, each), entries, known)
        assert least_ticks(problem, busiest)[0] <= to_ticks(prediction.step_s)
        busy_s = prediction.breakdown_s["compute"] + prediction.breakdown_s["optimizer"]
        assert busiest.busy()[0] <= to_ticks(busy_s) + 1
    assert least_bytes_of(space, some)[0] <= prediction.memory.peak_bytes
    if plan.pp > 1:
        assert entry_bytes(space, some, entries)[0] <= prediction.memory.peak_bytes
        assert pipeline_bytes(problem.gpt, plan) == prediction.memory.peak_bytes


def hidden(space: Space, name: str, data: st.DataObject) -> None:
    (holds_in_turns if IN_TURNS in space.problem.beside else holds_for_one_plan)(space, name, data)


@few_and_many(
    4,
    300,
    DRAWN,
    space=spaces_in_turns(),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_no_plan_that_hides_all_to_alls_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    hidden(space, name, data)


@st.composite
def spaces_of_recipes(draw: st.DrawFn) -> Space:
    """The plans of a drawn model by a recipe, some with gradients of weights put off."""
    keys = draw(st.sets(st.sampled_from(WITH_RECIPES), max_size=2))
    fixed = {key: draw(st.sampled_from(FIELDS[key])) for key in sorted(keys)}
    fixed["recipe"] = draw(st.sampled_from(["fp8-delayed", "fp8-tensorwise", "fp8-blockwise"]))
    gpt = draw(st.one_of(models(), mixtures()))
    devices, batch = draw(st.sampled_from([4, 8, 12, 16, 32])), draw(st.sampled_from([8, 24, 64]))
    beside = ("wgrad",) if gpt.experts and draw(st.booleans()) else ()
    more: dict[str, Any] = {"splits_sequences": draw(st.booleans()), "beside": beside}
    try:
        return space_of(SearchProblem(gpt, devices, batch, fixed, **more))
    except PlanCannotRunError:
        reject()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=200, deadline=None, phases=UNSHRUNK)
@given(space=spaces_of_recipes(), data=st.data())
def test_two_hundred_plans_by_a_recipe_take_no_less(space: Space, data: st.DataObject) -> None:
    hidden(space, "alps", data)


@pytest.mark.slow
def test_a_search_over_hidden_all_to_alls_finds_what_trying_all_plans_finds() -> None:
    """Without a pipeline, and interleaved over two stages; wgrad without a2a in either schedule."""
    fixed = without("pp") | {"tp": 1, "dp": 2, "ep": 2}
    also = {"overlap": ("a2a", "wgrad")}
    for pp, schedules in ((1, {"1f1b"}), (2, {"1f1b", "gpipe"})):
        devices = 2 * pp
        problem = SearchProblem(TINY, devices, 8, fixed | {"pp": pp}, also=also)
        plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
        found = {plan.overlap for plan in plans}
        assert found == {("dp",), ("a2a", "dp"), ("wgrad", "dp"), ("a2a", "wgrad", "dp")}
        assert {plan.schedule for plan in plans if "wgrad" in plan.overlap} == schedules
        assert {plan.vpp for plan in plans if "a2a" in plan.overlap} == {pp}
        same_answer(problem, "perlmutter", top=3)


def test_hidden_all_to_alls_can_be_kept_by_a_search() -> None:
    kept = FEW | {"overlap": ("a2a", "wgrad"), "tp": 1, "dp": 2}
    problem = SearchProblem(TINY, 2, 8, kept)
    plans = list(every_plan(space_of(problem)))
    assert {(plan.overlap, plan.ep) for plan in plans} == {(("a2a", "wgrad"), 2)}
    same_answer(problem, "perlmutter", top=1)
    with pytest.raises(PlanError, check=names("overlap=a2a", "small")):
        SearchProblem(SMALL, 4, 8, also={"overlap": ("a2a",)})
    with pytest.raises(PlanError, check=names("overlap=dp", "a2a", "wgrad")):
        SearchProblem(TINY, 4, 8, also={"overlap": ("dp",)})


def test_slots_in_turns_take_as_long_as_all_compute_or_all_exchanges() -> None:
    """Two micro-batches of one layer, whose forward passes compute 10 and exchange 4 ticks, and
    backward passes 5 and 20: 2 x 15 of compute and 2 x 24 of exchanges; alone slots take 60."""
    each = {"forward": (10, 4), "backward": (5, 20)}
    known = {
        ("layer", work, last): {
            ("", stream): np.array([ticks])
            for stream, ticks in zip((COMPUTE, EXCHANGES), times, strict=True)
        }
        for work, times in each.items()
        for last in (False, True)
    }
    one, two = np.array([1]), np.array([2])
    entries = Entries(np.array([0]), one, two, np.array([0]), one, one)
    busiest = BusiestStream(known, entries, ())
    problem = SearchProblem(TINY, 2, 8, beside=("a2a",))
    assert least_ticks(problem, busiest).tolist() == [48]
    assert least_ticks(replace(problem, beside=("wgrad",)), busiest).tolist() == [60]


@st.composite
def spaces_in_a_v(draw: st.DrawFn) -> Space:
    """The plans of a drawn model with a schedule in the shape of a V."""
    gpt = draw(st.one_of(models(layers=(4, 8, 24)), mixtures(layers=(5, 8, 13, 27))))
    schedule = draw(st.sampled_from(["zb-v", "dualpipe-v"]))
    turns = draw(st.booleans()) and schedule == "dualpipe-v" and bool(gpt.experts)
    pp = draw(st.sampled_from([2, 2, 4]))
    devices, batch = pp * draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([8, 16, 64]))
    few: dict[str, Any] = draw(st.sampled_from([{}, {"mbs": 1}, {"recompute": "full"}]))
    fixed: dict[str, Any] = few | {"pp": pp, "schedule": schedule}
    try:
        return space_of(SearchProblem(gpt, devices, batch, fixed, beside=("a2a",) if turns else ()))
    except PlanCannotRunError:
        reject()


@few_and_many(
    4, 300, DRAWN, space=spaces_in_a_v(), name=st.sampled_from(sorted(MACHINES)), data=st.data()
)
def test_no_plan_in_a_v_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_in_turns(space, name, data)


@pytest.mark.slow
def test_a_search_over_schedules_in_a_v_finds_what_trying_all_plans_finds() -> None:
    """Of four layers, of which one has no experts, on two stages of two chunks each."""
    fixed = without("pp") | {"tp": 1, "dp": 1, "mbs": 1}
    also = {"schedule": ("zb-v", "dualpipe-v")}
    with pytest.raises(PlanCannotRunError, check=names("tiny-deepseek-2m", "4", "schedule")):
        spaces_of(SearchProblem(TINY, 4, 8, fixed | {"pp": 4}, also=also))
    with pytest.raises(PlanCannotRunError, check=names("megatron-core", "schedule=zb-v")):
        SearchProblem(TINY, 4, 8, also=also, stack=load_stack("megatron-core"))
    problem = SearchProblem(TINY, 2, 8, fixed | {"pp": 2}, also=also)
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    found = {(plan.schedule, plan.vpp) for plan in plans}
    assert found == {*((name, 1) for name in STRAIGHT), ("1f1b", 2), ("zb-v", 2), ("dualpipe-v", 2)}
    same_answer(problem, "perlmutter", top=4)


def test_a_plan_in_a_v_that_hides_all_to_alls_needs_no_less_than_its_bound() -> None:
    """Less is held where a chunk is saved while another goes back than with one after the other."""
    gpt = replace(SMALL, layers=8, positions="rope", biases=False, activation="swiglu")
    gpt = replace(gpt, experts=8, topk=2, expert_ffn=128)
    fixed = {"mbs": 1, "pp": 2, "schedule": "dualpipe-v", "recompute": "none"}
    space = space_of(SearchProblem(gpt, 8, 16, fixed, beside=("a2a",)))
    some, zeros = next(sized(space, np.zeros(1, dtype=np.int64))), np.zeros(1, dtype=np.int64)
    (entries,) = entries_of(space, zeros)
    needed = []
    for overlap in (("oar", "ors", "oag", "a2a", "dp"), ("oar", "ors", "oag", "dp")):
        plan = space.plan(0, Order("dualpipe-v", 2, overlap))
        needed.append(predict(gpt, plan, MACHINES["frontier"]).memory.peak_bytes)
    assert entry_bytes(space, some, entries)[0] <= needed[0] < needed[1]


def test_few_micro_batches_in_a_v_hold_less_than_as_many_stages_do() -> None:
    """Eight micro-batches on eight stages: the first holds eight first chunks and one second one
    when it goes back, not eight of both."""
    fixed = without("pp") | {"tp": 1, "dp": 1, "pp": 8, "schedule": "zb-v", "overlap": ()}
    space = space_of(SearchProblem(replace(SMALL, layers=16), 8, 8, fixed))
    (plan,) = every_plan(space)
    least = least_bytes_of(space, next(sized(space, np.array([0]))))
    assert 0 < least[0] <= pipeline_bytes(space.problem.gpt, plan)
    (entries,) = entries_of(space, np.array([0]))
    held = entry_bytes(space, next(sized(space, np.array([0]))), entries)
    assert least[0] < held[0] <= pipeline_bytes(space.problem.gpt, plan)
