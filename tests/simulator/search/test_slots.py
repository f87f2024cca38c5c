"""Bounds of single slots of a pipeline against the slots themselves, contention included: a bound
of a whole step may hold by what its ends leave out, though one of its slots does not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_ticks
from simulator.pipeline.pipeline_step import PipelineRun
from simulator.pipeline.stage_orders import StageOrders
from simulator.predict import predict
from simulator.ranks.classes import RankClasses, until_consistent
from simulator.ranks.fabric import MachineFabric
from simulator.search import SearchProblem
from simulator.search.bounds import schedule_bound
from simulator.search.bounds.batched_programs import placed, sized
from simulator.search.bounds.isolated import BETWEEN, FIRST_ONE, LAST_ONE, IsolatedBlocks
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.slot_programs import LoweredSlots, SlotProgram
from simulator.search.bounds.stream_bound import SCHEDULES
from simulator.search.orders import ORDERS, overlaps
from simulator.search.root_nodes import entries_of
from simulator.search.space import Order, Space, space_of, spaces_of
from simulator.search.tree_nodes import PipelineNode
from tests.examples import one_in
from tests.simulator.search.drawn import MACHINES, UNSHRUNK, mixtures, models
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.op import FORWARD
from workload.passes.matmul_forms import PLAIN
from workload.passes.stack import PLAIN_BEHAVIOUR
from workload.plan import Plan
from workload.stages import shape_of

LATENT = GPT.of(
    name="latent",
    layers=24,
    hidden=2048,
    heads=4,
    ffn=256,
    sequence=1024,
    vocab=1000,
    activation="swiglu",
    positions="rope",
    biases=False,
    q_rank=64,
    kv_rank=96,
    rope_width=32,
)
RECIPES = ["fp8", "fp8-delayed", "fp8-tensorwise", "fp8-blockwise"]
ROWS = {"sp": True, "tp": 2, "y": 1, "vpp": 1}


def each_slot(space: Space, row: int, order: Order, machine: Machine) -> Iterator[tuple[int, int]]:
    """For each slot of each stage its compute by the bound, and that of the simulated step."""
    plan = space.plan(row, order)
    fabric = MachineFabric(machine, plan.grid.ranks)
    costs = compute_costs(machine, fabric.ranks_per_node, plan.grid.ranks)
    stages = StageOrders(space.problem.gpt, plan, PLAIN, PLAIN_BEHAVIOUR)

    def tried(network: RankClasses) -> tuple[PipelineRun, list[Any]]:
        run = PipelineRun(stages, costs, network)
        return run, [own.ticks.tolist() for own in run.slots]

    _, own = until_consistent(partial(stages.network, fabric), tried)
    slots, chunks = _bounds(space, row, order, plan, OpBounds(space, costs, fabric))
    for stage, sorts in enumerate(schedule_bound.sorts_of(shape_of(plan))):
        before = last = None
        for number, found in zip(sorts.which.tolist(), own[stage], strict=True):
            (work, chunk, which), ahead = sorts.places[number]
            assert ahead == last
            part = chunks[chunk * plan.pp + stage]
            yield slots.slot(0, (work, part, which), after=before)[0], found
            before, last = ((work, part), (work, chunk)) if which == LAST_ONE else (None, None)


def _bounds(
    space: Space, row: int, order: Order, plan: Plan, op_bounds: OpBounds
) -> tuple[IsolatedBlocks, list[Any]]:
    zeros = np.zeros(1, dtype=np.int64)
    entries = next(
        each.only(np.array([at]), zeros)
        for each in entries_of(space, zeros + row)
        for at in range(len(each.lane))
        if each.pp[at] == plan.pp
        and each.vpp[at] == plan.vpp
        and SCHEDULES[int(each.schedule[at])] == plan.pipeline.schedule
    )
    lowered = LoweredSlots(
        next(sized(space, zeros + row, overlap=(), schedule=plan.pipeline.schedule))
    )
    program = SlotProgram(lowered, order.overlap)
    some = placed(program.some, zeros, np.array([ORDERS.index(order.ranks)]))
    chunks = [entries.chunk_of(0, number) for number in range(plan.pp * plan.vpp)]
    return IsolatedBlocks(op_bounds, some, entries, program), chunks


@pytest.mark.parametrize(
    ("gpt", "how", "machine"),
    one_in(
        2,
        [
            (
                LATENT,
                {"z": 2, "dp": 2, "schedule": "zb-2p", "mbs": 4, "zero": 2, "shard": 2},
                "alps",
            ),
            (
                LATENT.changed(hidden=1024, heads=8, q_rank=0, norm="rmsnorm", tied=False),
                {
                    "z": 1,
                    "dp": 1,
                    "schedule": "1f1b",
                    "mbs": 16,
                    "zero": 1,
                    "vpp": 3,
                }
                | {"cp": 4, "context_kind": "ulysses"},
                "dgx-a100",
            ),
        ],
    ),
)
def test_a_chunk_without_the_embedding_has_no_bucket_behind_it(
    gpt: GPT, how: dict[str, Any], machine: str
) -> None:
    """Its last additions and sums stay within its own layers; behind an embedding that the stage
    lacks they came later, and the slot's bound was above the slot."""
    fixed = {**ROWS, "pp": 2, "recompute": "selective", "order": "tp-dp-pp", **how}
    devices = 2 * 2 * how["z"] * how["dp"] * how.get("cp", 1)
    problem = SearchProblem(gpt, devices, 64, fixed)
    (space,) = spaces_of(problem)
    overlap = ("ors", "oag", "shared", "dp")
    schedule, chunks = str(fixed["schedule"]), int(str(fixed["vpp"]))
    order = Order(schedule, chunks, overlap, "tp-dp-pp")
    found = list(each_slot(space, 0, order, MACHINES[machine]))
    assert [(bound, own) for bound, own in found if bound > own] == []
    assert any(bound == own for bound, own in found)


FURTHER = LATENT.changed(layers=4, experts=4, topk=2, expert_ffn=128, tied=False, mtp_layers=1)

BOTH = FURTHER.changed(
    hidden=128,
    heads=2,
    ffn=1024,
    sequence=2048,
    q_rank=0,
    kv_rank=0,
    rope_width=0,
    tied=True,
    expert_ffn=1024,
    shared_ffn=512,
    dense_layers=1,
)


@pytest.mark.parametrize(
    ("recipe", "recompute", "machine"),
    [
        pytest.param("none", "full", "perlmutter", marks=pytest.mark.slow),
        ("fp8-tensorwise", "none", "alps"),
    ],
)
def test_additions_to_a_table_that_the_other_stage_has_too_wait_as_on_their_own_stage(
    recipe: str, recompute: str, machine: str
) -> None:
    """The classifiers of two modules for further tokens add to the embedding's table. Where the
    embedding is on the same stage its addition is the last, and others wait for it; the bound of a
    slot of a stage without it had them wait too, and was above the slot."""
    gpt = BOTH.changed(mtp_layers=2)
    shape = {"tp": 2, "y": 1, "z": 2, "dp": 2, "pp": 2, "ep": 2, "vpp": 1}
    how = {"mbs": 1, "recompute": recompute, "zero": 2, "schedule": "1f1b"}
    fixed = {**shape, **how, "order": "tp-dp-pp", "sp": True}
    problem = SearchProblem(gpt, 16, 16, {**fixed, "recipe": recipe})
    order = Order("1f1b", 1, ("ors", "oag", "shared", "dp"), "tp-dp-pp")
    found = list(each_slot(space_of(problem), 0, order, MACHINES[machine]))
    assert [(bound, own) for bound, own in found if bound > own] == []
    assert any(bound == own for bound, own in found)


MIXED = LATENT.changed(
    layers=4,
    hidden=512,
    heads=8,
    ffn=8192,
    sequence=512,
    vocab=64,
    tied=False,
    q_rank=0,
    kv_rank=0,
    rope_width=0,
    dense_layers=2,
    experts=4,
    topk=2,
    expert_ffn=128,
    router="sigmoid",
)
BALANCED: list[dict[str, Any]] = [{"router_bias": True}, {"balance_loss": 0.01}]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("more", BALANCED)
def test_what_keeps_experts_evenly_used_takes_no_time_on_stages_without_any(
    schedule: str, more: dict[str, Any]
) -> None:
    """The first of two stages has the dense layers: it sums no counts of choices, which made its
    bound longer than the step, and adds no balancing loss."""
    shape = {"tp": 1, "y": 1, "z": 1, "dp": 64, "pp": 2, "mbs": 1, "vpp": 1}
    how = {"schedule": schedule, "recompute": "none", "zero": 0, "order": "tp-dp-pp"}
    order = Order(schedule, 1, (), "tp-dp-pp")
    ends = []
    for gpt in (MIXED, MIXED.changed(**more)):
        problem = SearchProblem(gpt, 128, 256, {**shape, **how, "overlap": (), "ep": 1})
        (space,) = spaces_of(problem)
        fabric = MachineFabric(MACHINES["frontier"], 128)
        op_bounds = OpBounds(space, compute_costs(MACHINES["frontier"], 8, 128), fabric)
        slots, _ = _bounds(space, 0, order, space.plan(0, order), op_bounds)
        ends.append(slots.steps_of_stages(0))
        node = PipelineNode(space.plan(0, order), slots, 0, 0)
        step = predict(gpt, space.plan(0, order), MACHINES["frontier"]).step_s
        assert 0.95 * to_ticks(step) < node.ticks() <= to_ticks(step)
    assert ends[0][0] == ends[1][0]
    assert sum(ends[0][1]) < sum(ends[1][1])


def test_a_slot_has_its_own_bound_behind_each_other_in_whatever_order_they_are_asked_for() -> None:
    """Sums of gradients that are in flight behind a slot of the last micro-batch slow the next one;
    behind any other slot there are none. The first chunk has the embedding, the last the
    classifier; two have dense layers, and two experts."""
    shape = {"tp": 1, "y": 1, "z": 1, "dp": 2, "pp": 2, "vpp": 2, "ep": 1}
    how = {"mbs": 1, "recompute": "none", "zero": 1, "schedule": "1f1b"}
    problem = SearchProblem(MIXED, 4, 8, {**shape, **how, "order": "tp-dp-pp"})
    (space,) = spaces_of(problem)
    order = Order("1f1b", 2, ("dp",), "tp-dp-pp")
    plan, fabric = space.plan(0, order), MachineFabric(MACHINES["dgx-a100"], 4)
    op_bounds = OpBounds(space, compute_costs(MACHINES["dgx-a100"], 4, 4), fabric)
    _, chunks = _bounds(space, 0, order, plan, op_bounds)
    slots = [
        ((work, chunk, which), after)
        for work in (FORWARD, "backward")
        for chunk in chunks
        for which in (FIRST_ONE, BETWEEN, LAST_ONE)
        for after in (None, (FORWARD, chunks[0]), *(("backward", before) for before in chunks))
    ]

    def found(asked: list[Any]) -> dict[Any, tuple[int, int]]:
        blocks, _ = _bounds(space, 0, order, plan, op_bounds)
        return {(place, after): blocks.slot(0, place, after=after) for place, after in asked}

    ticks = found(slots)
    assert found(slots[::-1]) == ticks
    place = ("backward", chunks[0], BETWEEN)
    alone, summing = ticks[place, None][0], ticks[place, ("backward", chunks[3])][0]
    assert ticks[place, (FORWARD, chunks[0])][0] == alone < summing


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=300, deadline=None, phases=UNSHRUNK)
@given(
    gpt=st.one_of(models(), mixtures()), machine=st.sampled_from(sorted(MACHINES)), data=st.data()
)
def test_no_slot_of_three_hundred_plans_takes_less_than_its_bound(
    gpt: GPT, machine: str, data: st.DataObject
) -> None:
    pp, sequence_parallel = data.draw(st.sampled_from([2, 3, 4])), data.draw(st.booleans())
    fixed: dict[str, Any] = {"pp": pp} | ({"sp": True, "tp": 2} if sequence_parallel else {})
    if data.draw(st.booleans()):
        fixed["recipe"], machine = data.draw(st.sampled_from(RECIPES)), "alps"
    devices = pp * data.draw(st.sampled_from([2, 4, 8]))
    batch = data.draw(st.sampled_from([16, 48]))
    problem = SearchProblem(gpt, devices, batch, fixed)
    try:
        space = data.draw(st.sampled_from(spaces_of(problem)))
    except PlanCannotRunError:
        reject()
    row = data.draw(st.integers(0, len(space) - 1))
    entries = next(iter(entries_of(space, np.array([row]))))
    at = data.draw(st.integers(0, len(entries.lane) - 1))
    overlap = data.draw(st.sampled_from(overlaps(space.problem, space.shape(row))))
    ranks = data.draw(st.sampled_from(list(space.rank_orders(row))))
    schedule = SCHEDULES[int(entries.schedule[at])]
    order = Order(schedule, int(entries.vpp[at]), overlap, ranks)
    found = list(each_slot(space, row, order, MACHINES[machine]))
    assert [(bound, own) for bound, own in found if bound > own] == []
