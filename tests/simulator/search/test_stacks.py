"""Searches under software stacks: bounds hold, trying all plans finds the same, refusals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_ticks
from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from simulator.search import SearchProblem, search
from simulator.search.baselines import every_plan, exhaustive
from simulator.search.bounds.batched_programs import sized
from simulator.search.bounds.isolated import IsolatedBlocks
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import part_times
from simulator.search.bounds.slot_programs import LoweredSlots, SlotProgram
from simulator.search.bounds.stream_bound import BusiestStream, step_ticks
from simulator.search.orders import overlaps
from simulator.search.root_nodes import entries_of
from simulator.search.space import Order, spaces_of
from simulator.stacks import EXECUTOR, Stack, load_stack, stack_names
from simulator.stacks.effects import EFFECTIVE, meets
from simulator.stacks.job import job_of
from simulator.stacks.searched import fastest_kernels, kept, unbounded
from tests.examples import few_and_many
from tests.messages import assert_names, names
from tests.simulator.search.answers import finds_the_best, last
from tests.simulator.search.drawn import DRAWN, MACHINES, mixtures, models
from tests.simulator.search.test_bounds import holds_for_one_plan
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.passes.stack import of_lowering
from workload.plan import Plan

UNEVEN = "megatron-lm-zero-bubble"
NAMES = [name for name in stack_names() if name != UNEVEN]
GPT_4 = GPT.of(name="four", layers=4, hidden=512, heads=8, ffn=2048, sequence=256, vocab=50257)
NARROW = {"mbs": 1, "order": "tp-dp-pp", "recompute": "none"}


def holds_for_a_plan_of(name: str, gpt: GPT, machine: str, data: st.DataObject) -> None:
    stack = load_stack(name)
    fixed = data.draw(st.sampled_from([{}, {"attention": "flash"}, {"attention": "unfused"}]))
    kernels = fastest_kernels(stack, gpt, fixed, MACHINES[machine])
    devices, batch = data.draw(st.sampled_from([4, 8, 16])), data.draw(st.sampled_from([16, 48]))
    problem = SearchProblem(gpt, devices, batch, fixed, stack=stack, behaviour=kernels.behaviour)
    try:
        spaces = spaces_of(problem)
    except PlanCannotRunError:
        reject()
    holds_for_one_plan(data.draw(st.sampled_from(spaces)), machine, data)


# An attention and a softmax of their own, no pipeline, sums once a step, own kernels.
BOUNDED = ("megatron-core", "megatron-lm-2021", "fsdp", "torchtitan", "simgpt")
SEARCHED = ("fsdp",)


def quick(names: Collection[str], every: Sequence[str]) -> list[Any]:
    """All names as parameters; those beside some are slow tests."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in every]


@pytest.mark.parametrize("name", quick(BOUNDED, NAMES))
@few_and_many(
    2,
    100,
    DRAWN,
    gpt=models(),
    machine=st.sampled_from(["dgx-a100", "dgx-h100", "frontier"]),
    data=st.data(),
)
def test_no_plan_of_a_stack_takes_less_than_its_bounds(
    name: str, gpt: GPT, machine: str, data: st.DataObject
) -> None:
    holds_for_a_plan_of(name, gpt, machine, data)


@pytest.mark.parametrize(
    "fixed", [{"pp": 2, "zero": 3, "reshard": False}, {"pp": 2, "zero": 3}, {"pp": 2}]
)
@few_and_many(1, 20, DRAWN, gpt=models(), data=st.data())
def test_no_pipeline_that_reduces_once_a_step_takes_less_than_its_bounds(
    fixed: dict[str, object], gpt: GPT, data: st.DataObject
) -> None:
    """Bounds count nothing of what its stages do once for all micro-batches, not for each."""
    stack = load_stack("torchtitan")
    kernels = fastest_kernels(stack, gpt, fixed, MACHINES["perlmutter"])
    problem = SearchProblem(gpt, 8, 48, fixed, stack=stack, behaviour=kernels.behaviour)
    try:
        spaces = spaces_of(problem)
    except PlanCannotRunError:
        reject()
    holds_for_one_plan(data.draw(st.sampled_from(spaces)), "perlmutter", data)


# With hosts that issue experts' kernels more slowly than they run: usual exchanges, kernels of the
# stack's own, parts of layers in graphs; and one that issues those of dense models so.
SLOW_HOSTS = ("nemo", "nemo+deepep", "nemo+graphs=attn", "megatron-deepspeed")


@pytest.mark.parametrize("name", quick(SLOW_HOSTS[1:3], SLOW_HOSTS))
@few_and_many(
    2,
    100,
    DRAWN,
    gpt=mixtures(),
    machine=st.sampled_from(["dgx-a100", "dgx-h100"]),
    data=st.data(),
)
def test_no_plan_whose_host_is_slow_takes_less_than_its_bounds(
    name: str, gpt: GPT, machine: str, data: st.DataObject
) -> None:
    holds_for_a_plan_of(name, gpt, machine, data)


EXPERTS_4 = GPT_4.changed(activation="swiglu", biases=False, experts=8, topk=2, expert_ffn=512)


@pytest.mark.parametrize(
    ("name", "gpt"),
    [
        ("megatron-deepspeed", GPT_4),
        ("nemo", EXPERTS_4),
        pytest.param("primus", EXPERTS_4, marks=pytest.mark.slow),
    ],
)
def test_bounds_of_a_step_that_its_host_limits_are_the_step(name: str, gpt: GPT) -> None:
    """On one device nothing overlaps, so what every block takes to issue makes the whole step, but
    for the rounding of ops on the parameters of all layers."""
    stack, machine = load_stack(name), MACHINES["dgx-a100"]
    kernels = fastest_kernels(stack, gpt, {}, machine)
    fixed = NARROW | {"mbs": 2}
    asked = SearchProblem(gpt, 1, 8, fixed, stack=stack, behaviour=kernels.behaviour)
    (space,) = spaces_of(asked)
    entries = next(entries_of(space, np.array([0])))
    plan = space.plan(0, Order("1f1b", 1, overlaps(space.problem, space.shape(0))[0]))
    found = predict(space.problem.gpt, plan, machine, stack=stack)
    assert found.breakdown_s["host"] > 0.5 * found.step_s
    fabric = MachineFabric(machine, 1)
    costs = compute_costs(machine, fabric.ranks_per_node, 1, kernels)
    op_bounds, plain = OpBounds(space, costs, fabric), of_lowering(kernels.behaviour)
    rows = next(sized(space, np.array([0]), overlap=(), behaviour=plain))
    slots = SlotProgram(LoweredSlots(rows, behaviour=kernels.behaviour), plan.training.overlap)
    bound = step_ticks(IsolatedBlocks(op_bounds, slots.some, entries, slots))
    assert to_ticks(found.step_s) - 10 < bound[0] <= to_ticks(found.step_s)
    known = part_times(op_bounds, next(sized(space, np.array([0]), behaviour=kernels.behaviour)))
    streams = step_ticks(BusiestStream(known, entries, None))
    assert 0.8 * bound[0] < streams[0] <= bound[0]


@pytest.mark.parametrize(
    "name", quick(SEARCHED, [name for name in NAMES if name not in ("simgpt", "other")])
)
def test_a_search_of_a_stack_finds_what_trying_all_its_plans_finds(name: str) -> None:
    fixed = NARROW | ({"tp": 2, "y": 1} if "axonn" in name else {})
    problem = SearchProblem(GPT_4, 4, 8, fixed, stack=load_stack(name))
    machine = MACHINES["dgx-a100"]
    finds_the_best(problem, machine)
    for each in last(search(problem, machine)).found:  # and as `predict --stack` reads its text
        job = job_of(GPT_4, each.plan_text, problem.stack, batch=8)
        again = predict(job.gpt, job.plan, machine, stack=job.stack)
        assert again.step_s == each.step_s
        assert with_effect(again.plan) == with_effect(each.plan)


def with_effect(plan: Plan) -> dict[str, Any]:
    """The values of a plan's keys that have an effect in it."""
    return {
        key: value
        for key, value in plan.as_dict().items()
        if all(meets(on, want, plan.value(on)) for on, want in EFFECTIVE.get(key, {}).items())
    }


def test_torchtitans_own_recomputation_is_searched_as_trying_all_does() -> None:
    fixed = {**NARROW, "dp": 4, "recompute": "selective"}
    problem = SearchProblem(GPT_4, 4, 8, fixed, stack=load_stack("torchtitan"))
    found, every = (
        last(each(problem, MACHINES["dgx-a100"], top=3)) for each in (search, exhaustive)
    )
    assert {each.plan.training.recompute for each in found.found} == {"per_op"}
    assert [each.plan for each in found.found] == [each.plan for each in every.found]
    assert [each.step_s for each in found.found] == [each.step_s for each in every.found]


def test_each_plan_has_the_vocabulary_that_its_x_makes() -> None:
    """Padded to multiples of 128 x: 50,304 for one device, 50,432 for two, 50,688 for four."""
    problem = SearchProblem(GPT_4, 4, 8, NARROW, stack=load_stack("megatron-core"))
    vocabularies = {
        plan.tp: space.problem.gpt.vocab
        for space in spaces_of(problem)
        for plan in every_plan(space)
    }
    assert vocabularies == {1: 50304, 2: 50432, 4: 50688}


def test_without_a_stack_a_problem_is_one_part() -> None:
    problem = SearchProblem(GPT_4, 4, 8, NARROW)
    assert problem.parts() == [problem]


def test_only_what_a_stack_can_run_is_searched() -> None:
    stack = load_stack("megatron-core")
    problem = SearchProblem(GPT_4, 8, 16, NARROW, stack=stack)
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    for plan in plans:
        stack.check(plan)
    assert {(plan.zero, plan.training.overlap) for plan in plans} == {
        *((zero, ("oar", "dp", "pp")) for zero in (0, 1)),
        (2, ("oar", "ors", "dp", "pp")),
        (3, ("oar", "ors", "oag", "dp", "pp")),
    }
    assert {(plan.y, plan.z, plan.pipeline.schedule) for plan in plans} == {(1, 1, "1f1b")}
    half = SearchProblem(GPT_4, 4, 8, {"mbs": 1}, stack=load_stack("torchtitan"))
    every = [plan for space in spaces_of(half) for plan in every_plan(space)]
    assert {plan.training.recompute for plan in every} == {"none", "per_op", "full"}


def ours(**keys: object) -> Stack:
    return replace(load_stack("megatron-core"), name="ours", own_kernels=keys)


def test_what_a_stack_does_not_run_is_refused_by_name() -> None:
    with pytest.raises(PlanCannotRunError, check=names("fsdp", "pp", "dp")):
        kept(load_stack("fsdp"), {"pp": 2})


def test_of_stages_that_a_stack_splits_unevenly_no_bounds_are_known() -> None:
    why = unbounded(load_stack(UNEVEN), GPT_4, {}, MACHINES["dgx-a100"])
    assert_names(why, UNEVEN, "ends_as_layers")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"payloads": {"all_reduce": 2.0}}, "all_reduce"),
        ({"payloads": {"all_gather": 0.5}}, "all_gather"),
        ({"passes": {"square_sum": 3.0}}, "square_sum"),
        ({"fused": ["clip"]}, "clip"),
    ],
)
def test_of_a_stack_that_changes_what_follows_all_slots_no_bounds_are_known(
    keys: dict[str, object], name: str
) -> None:
    assert_names(unbounded(ours(**keys), GPT_4, {}, MACHINES["dgx-a100"]), "ours", name)
    assert not unbounded(load_stack("megatron-core"), GPT_4, {}, MACHINES["dgx-a100"])


def test_bounds_of_unfused_attention_have_the_fastest_softmax() -> None:
    """A fused softmax moves 0.75 of the bytes, one in steps 3.63 times as many."""
    stack, machine = load_stack("megatron-lm-2021"), MACHINES["dgx-a100"]
    found = fastest_kernels(stack, GPT_4, {"attention": "unfused"}, machine)
    assert dict(found.behaviour.passes)["softmax"] == 0.75
    assert fastest_kernels(EXECUTOR, GPT_4, {}, machine).host_s == 0
    flash = fastest_kernels(stack, GPT_4, {}, machine)
    assert "softmax" not in dict(flash.behaviour.passes)


@pytest.mark.parametrize("name", quick(["nemo@23.05"], ["megatron-lm-2023", "nemo@23.05"]))
def test_a_stack_without_fused_attention_has_that_softmax_where_nobody_asks(name: str) -> None:
    """Of long sequences bounds with the slower softmax were 6 % above the steps, and the answers
    others than of trying all."""
    stack, machine = load_stack(name), MACHINES["dgx-a100"]
    least = fastest_kernels(stack, GPT_4, {"attention": "unfused"}, machine)
    assert dict(least.behaviour.passes)["softmax"] == 0.75
    assert fastest_kernels(stack, GPT_4, {}, machine) == least
    gpt = replace(GPT_4, sequence=2048)
    fixed = NARROW | {"mbs": 4, "recompute": "selective"}
    finds_the_best(SearchProblem(gpt, 2, 16, fixed, stack=stack), machine)


@pytest.mark.slow
@pytest.mark.parametrize("pp", [1, 2])
def test_a_stack_whose_gathered_keys_come_in_steps_is_searched(pp: int) -> None:
    """These steps have buffers that no program without the stack has."""
    gpt = replace(GPT_4, norm="rmsnorm", positions="rope", biases=False)
    fixed = {"pp": pp, "cp": 2, "context_kind": "all_gather", "mbs": 1}
    problem = SearchProblem(gpt, 4, 8, fixed, stack=load_stack("torchtitan"))
    finds_the_best(problem, MACHINES["dgx-a100"])
