"""Bounds: no plan takes less, and no plan needs less memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_ticks
from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import of_rows, placed, sized
from simulator.search.bounds.in_flight import entry_bytes
from simulator.search.bounds.isolated import IsolatedBlocks
from simulator.search.bounds.isolated_times import Slots, isolated_times
from simulator.search.bounds.layouts import plain_layers
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import part_times
from simulator.search.bounds.peak_memory import alone_bytes, pipeline_bytes
from simulator.search.bounds.slot_programs import LoweredSlots, SlotProgram, overlapped
from simulator.search.bounds.stream_bound import SCHEDULES, BusiestStream, step_ticks
from simulator.search.bounds.unsupported import RefusalTimes
from simulator.search.objective import OBJECTIVES, Objective
from simulator.search.orders import ORDERS, overlaps
from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import Family, bounded, entries_of, least_bytes_of
from simulator.search.space import Order, Space, space_of
from simulator.search.tree_nodes import PipelineNode
from simulator.stacks.searched import fastest_kernels
from tests.simulator.search.drawn import MACHINES, UNSHRUNK, mixtures, spaces
from tests.simulator.worlds import compute
from topologies.placement import scheduler
from workload.dataflow import waits
from workload.gpt import GPT
from workload.grid import USUAL
from workload.lowering import lower
from workload.op import COMPUTE
from workload.overlaps import OVERLAPS
from workload.passes.stack import of_lowering
from workload.pipeline.schedule import OPPOSED, STRAIGHT, V_SHAPED
from workload.plan_text import parse_plan

HUGE = 10**18
GPT_12 = GPT.of(name="one", layers=12, hidden=512, heads=8, ffn=2048, sequence=512, vocab=1000)

ROPE: dict[str, Any] = {"positions": "rope"}


def test_stages_are_looked_at_as_long_as_a_plan_is_below_the_threshold() -> None:
    """Behind the third stage no plan is below 8, so the fourth is not looked at."""
    stages = map(np.array, ([1, 5, 9], [8, 2, 1], [2, 9, 2], [99, 99, 99]))
    busy = np.zeros(3, dtype=np.int64)
    found = Objective("time", MACHINES["perlmutter"], 8).bound_by(stages, busy, 8)
    assert (found.tolist(), [each.tolist() for each in stages]) == ([8, 9, 9], [[99, 99, 99]])


def holds_for_one_plan(space: Space, name: str, data: st.DataObject) -> None:
    problem, machine = space.problem, MACHINES[name]
    where = scheduler(machine, problem.devices)
    fabric = MachineFabric(machine, problem.devices, where)
    kernels = fastest_kernels(problem.stack, problem.gpt, problem.fixed, machine)
    assert problem.behaviour == kernels.behaviour
    costs = compute_costs(machine, fabric.ranks_per_node, problem.devices, kernels)
    op_bounds = OpBounds(space, costs, fabric)
    row = data.draw(st.integers(0, len(space) - 1))
    rows = np.array([row])
    known = part_times(op_bounds, next(sized(space, rows, behaviour=problem.behaviour)))
    entries = data.draw(st.sampled_from(list(entries_of(space, rows))))
    at = data.draw(st.integers(0, len(entries.lane) - 1))
    entries = entries.only(np.arange(len(entries.lane)) == at, np.zeros(1, dtype=np.int64))
    schedule = SCHEDULES[int(entries.schedule[0])]
    overlap = data.draw(st.sampled_from(overlaps(problem, space.shape(row))))
    ranks = data.draw(st.sampled_from(space.rank_orders(row)))
    plan = space.plan(row, Order(schedule, int(entries.vpp[0]), overlap, ranks))
    plain = of_lowering(problem.behaviour)
    slot_program = SlotProgram(
        LoweredSlots(
            next(sized(space, rows, overlap=(), schedule=schedule, behaviour=plain)),
            behaviour=of_rows(problem.behaviour, space, rows),
        ),
        overlap,
    )
    some = slot_program.some
    in_order = placed(some, np.zeros(1, dtype=np.int64), np.array([ORDERS.index(ranks)]))
    anywhere = IsolatedBlocks(op_bounds, some, entries, slot_program)
    slots = IsolatedBlocks(op_bounds, in_order, entries, slot_program)
    stack, gpt = problem.stack, problem.stack.model(problem.gpt, plan.tp)
    assert gpt == problem.gpt
    prediction = predict(gpt, plan, machine, placement=where, stack=stack)
    step = to_ticks(prediction.step_s)
    loosest = step_ticks(BusiestStream(known, entries, None))[0]
    assert loosest <= step_ticks(BusiestStream(known, entries, overlap))[0] <= step
    exact = BusiestStream(part_times(op_bounds, in_order), entries, overlap)
    assert step_ticks(BusiestStream(known, entries, overlap))[0] <= step_ticks(exact)[0] <= step
    # Of slower collectives the middle layers may not keep step, and then less is known of them.
    assert max(step_ticks(anywhere)[0], step_ticks(slots)[0]) <= step
    busy_s = prediction.breakdown_s["compute"] + prediction.breakdown_s["optimizer"]
    assert BusiestStream(known, entries, overlap).busy()[0] <= to_ticks(busy_s) + 1
    for objective in OBJECTIVES:
        goal = Objective(objective, machine, problem.devices)
        bound = goal.bound(step_ticks(slots), BusiestStream(known, entries, overlap).busy())
        assert bound[0] <= goal.of(prediction)
    if plan.pp > 1:
        assert PipelineNode(plan, slots, 0, 0).ticks() <= step
        assert pipeline_bytes(gpt, plan, problem.behaviour) == prediction.memory.peak_bytes
        asked = next(sized(space, rows, behaviour=problem.behaviour))
        assert entry_bytes(space, asked, entries)[0] <= prediction.memory.peak_bytes
    least = least_bytes_of(space, some)
    assert least[0] <= prediction.memory.peak_bytes
    if plan.pp == 1:
        assert alone_bytes(some, problem.gpt)[0] <= prediction.memory.peak_bytes


@settings(max_examples=5, deadline=None, phases=UNSHRUNK)
@given(space=spaces(), name=st.sampled_from(sorted(MACHINES)), data=st.data())
def test_no_plan_takes_less_than_its_bounds(space: Space, name: str, data: st.DataObject) -> None:
    holds_for_one_plan(space, name, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=1000, deadline=None, phases=UNSHRUNK)
@given(space=spaces(), name=st.sampled_from(sorted(MACHINES)), data=st.data())
def test_a_thousand_plans_take_no_less(space: Space, name: str, data: st.DataObject) -> None:
    holds_for_one_plan(space, name, data)


@settings(max_examples=3, deadline=None, phases=UNSHRUNK)
@given(space=spaces(gpts=mixtures()), name=st.sampled_from(sorted(MACHINES)), data=st.data())
def test_no_plan_of_a_model_with_experts_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=120, deadline=None, phases=UNSHRUNK)
@given(space=spaces(gpts=mixtures()), name=st.sampled_from(sorted(MACHINES)), data=st.data())
def test_a_hundred_and_twenty_plans_of_models_with_experts_take_no_less(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


def test_without_anything_that_overlaps_the_bound_is_the_step() -> None:
    """One device, and two of the same replica: nothing shares a link with anything. Also with
    modules for further tokens behind layers of one kind and of two."""
    one: dict[str, object] = {"dp": 1}
    further = GPT_12.changed(layers=2, positions="rope", mtp_layers=2)
    routed = further.changed(biases=False, experts=4, topk=2, expert_ffn=128, dense_layers=1)
    pairs = [(GPT_12, one), (GPT_12, {"dp": 2, "overlap": ()}), (further, one), (routed, one)]
    for gpt, fixed in pairs:
        space = _space_of_one(gpt, fixed)
        machine = MACHINES["perlmutter"]
        fabric = MachineFabric(machine, space.problem.devices)
        costs = compute_costs(machine, fabric.ranks_per_node, space.problem.devices)
        op_bounds = OpBounds(space, costs, fabric)
        (family,) = bounded(
            op_bounds, RefusalTimes(costs, fabric), HUGE, np.arange(len(space))
        ).found
        assert isinstance(family, Family)
        slot_program = SlotProgram(LoweredSlots(next(sized(space, family.rows, overlap=()))), ())
        bound = step_ticks(
            IsolatedBlocks(op_bounds, slot_program.some, family.entries, slot_program)
        )
        for at, row in enumerate(family.rows[family.entries.lane]):
            plan = space.plan(int(row), Order("1f1b", 1, ()))
            step = predict(space.problem.gpt, plan, machine).step_s
            assert bound[at] == to_ticks(step)


@pytest.mark.parametrize("more", [{}, ROPE, {**ROPE, "mtp_layers": 1}])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_stage_may_sum_more_gradients_in_less_time_than_another_its_fewer(
    more: dict[str, Any], schedule: str
) -> None:
    """On Kestrel the layers alone take longer than with a table, for which NCCL's tuner changes the
    algorithm. Whichever stage ends last, the bound is no more than the step."""
    gpt = replace(GPT_12, layers=2, hidden=64, ffn=128, sequence=8192, vocab=3500, tied=False)
    shape = {"tp": 1, "y": 1, "z": 1, "dp": 16, "pp": 2, "mbs": 2, "vpp": 1}
    order = {"schedule": schedule, "overlap": (), "recompute": "none", "zero": 0, "order": USUAL}
    problem = SearchProblem(gpt.changed(**more), 32, 64, {**shape, **order, "sp": False})
    bound, step = _of_pipeline(problem, "kestrel", Order(schedule, 1, (), USUAL))
    assert 0.7 * step < bound <= step


def test_what_is_summed_for_a_module_of_the_last_stage_takes_no_time_on_others() -> None:
    """With sequence parallelism the gradients of the matrix before a module for further tokens are
    summed over x: 0.8 ms on the last stage, whereas the first one ends last."""
    gpt = GPT_12.changed(hidden=256, heads=4, sequence=256, vocab=50260, norm="rmsnorm")
    gpt = gpt.changed(activation="swiglu", positions="rope", mtp_layers=1)
    ranks = "pp-y-z-dp-tp"
    shape = {"tp": 4, "y": 1, "z": 1, "dp": 1, "pp": 4, "mbs": 16, "vpp": 1}
    order = {"schedule": "1f1b", "overlap": (), "recompute": "selective", "order": ranks}
    problem = SearchProblem(gpt, 16, 16, {**shape, **order, "sp": True, "zero": 0})
    bound, step = _of_pipeline(problem, "frontier", Order("1f1b", 1, (), ranks))
    assert 0.95 * step < bound <= step


def _of_pipeline(problem: SearchProblem, machine: str, order: Order) -> tuple[int, int]:
    """The bound of the one plan of a problem, and its step, in ticks."""
    space, devices, zeros = space_of(problem), problem.devices, np.zeros(1, dtype=np.int64)
    assert space.plans == 1
    (entries,) = entries_of(space, zeros)
    plan = space.plan(0, order)
    fabric = MachineFabric(MACHINES[machine], devices)
    costs = compute_costs(MACHINES[machine], fabric.ranks_per_node, devices)
    op_bounds = OpBounds(space, costs, fabric)
    slot_program = SlotProgram(
        LoweredSlots(next(sized(space, zeros, overlap=(), schedule=order.schedule))), ()
    )
    some = placed(slot_program.some, zeros, np.array([ORDERS.index(order.ranks)]))
    node = PipelineNode(plan, IsolatedBlocks(op_bounds, some, entries, slot_program), 0, 0)
    return node.ticks(), to_ticks(predict(problem.gpt, plan, MACHINES[machine]).step_s)


@pytest.mark.parametrize(("beside", "eighteen"), [(10, 180), (8, 180), (12, 80)])
def test_further_layers_count_only_where_all_streams_keep_step(beside: int, eighteen: int) -> None:
    """Work takes 10 ticks a layer, so that of 18 layers ends at 180. Of 8 layers that is known if
    what runs beside it comes 10 later with each, too; if it falls behind, nothing is."""
    ops = [
        op
        for layer in range(8)
        for op in (
            compute(f"m0.l{layer}.work", writes=f"p{layer}"),
            compute(f"m0.l{layer}.beside", reads=f"p{layer}", writes=f"q{layer}", stream="z"),
        )
    ]
    durations = np.array([[10 if op.stream == COMPUTE else beside] for op in ops])
    few = isolated_times(Slots(ops, waits(ops), plain_layers(8)), durations)
    assert few.compute.tolist() == [80]
    assert few.ends(np.array([0]), np.array([10]))[0].tolist() == [eighteen]


@pytest.mark.parametrize("overlap", [OVERLAPS, ()])
@pytest.mark.parametrize("schedule", [*STRAIGHT, *OPPOSED])
def test_the_peak_of_a_pipeline_is_known_without_its_times(
    schedule: str, overlap: tuple[str, ...]
) -> None:
    """On the fullest stage, for every schedule; also of two copies of the model in a pipeline."""
    chunks = 2 if schedule in V_SHAPED else 1
    text = f"pp=4,dp=2,zero=1,schedule={schedule},vpp={chunks},mbs=2"
    plan = parse_plan(text, batch=32).changed(overlap=overlap)
    gpt = replace(GPT_12, layers=8)
    assert pipeline_bytes(gpt, plan) == predict(gpt, plan, MACHINES["frontier"]).memory.peak_bytes


def test_fewer_overlaps_may_need_more_memory_so_each_plan_is_asked_for_its_own() -> None:
    """With ZeRO-3 and recomputation one with all overlaps needs less than with few of them. Where
    there is too little room one stage that shows it is enough."""
    shape = {"pp": 2, "dp": 4, "zero": 3, "shard": 2, "batch": 32, "mbs": 1}
    plan = parse_plan(shape | {"recompute": "full"})
    every, few = (plan.changed(overlap=overlap) for overlap in (OVERLAPS, ("ors",)))
    assert pipeline_bytes(GPT_12, every) < pipeline_bytes(GPT_12, few)
    for each in (every, few):
        exact = predict(GPT_12, each, MACHINES["frontier"]).memory.peak_bytes
        assert pipeline_bytes(GPT_12, each, room=exact) == exact
        assert exact - 1 < pipeline_bytes(GPT_12, each, room=exact - 1) <= exact


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"z": 2, "zero": 2}, {"zero": 3}, {"tp": 2}, {"pp": 1}])
def test_overlaps_put_on_a_lowered_program_are_those_that_lowering_makes(
    shape: dict[str, int],
) -> None:
    for recompute, schedule in (("none", "1f1b"), ("full", "zb-h1")):
        own = {"dp": 4, "batch": 32, "mbs": 1, "recompute": recompute}
        plan = parse_plan(own | shape | {"schedule": schedule})
        plain = lower(GPT_12, plan.changed(overlap=()))
        for count in range(len(OVERLAPS) + 1):
            for overlap in combinations(OVERLAPS, count):
                whole = lower(GPT_12, plan.changed(overlap=overlap))
                assert overlapped(plain, overlap).ops == whole.ops


def _space_of_one(gpt: GPT, fixed: dict[str, object]) -> Space:
    devices = int(str(fixed["dp"]))
    own = {"tp": 1, "y": 1, "z": 1, "pp": 1, "zero": 0, "recompute": "none", **fixed}
    return space_of(SearchProblem(gpt, devices, 2 * devices, {**own, "mbs": 2}))
