"""Bounds of what follows the slots of a pipeline's stages, where only some have experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_ticks
from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from simulator.search import SearchProblem
from simulator.search.bounds.batched_programs import placed, sized
from simulator.search.bounds.isolated import IsolatedBlocks
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.slot_programs import LoweredSlots, SlotProgram
from simulator.search.orders import ORDERS
from simulator.search.root_nodes import entries_of
from simulator.search.space import Order, Space, spaces_of
from simulator.search.tree_nodes import PipelineNode
from tests.simulator.search.drawn import MACHINES
from workload.gpt import GPT
from workload.plan import Plan

MIXED = GPT(
    name="mixed",
    layers=4,
    hidden=512,
    heads=8,
    ffn=8192,
    sequence=512,
    vocab=64,
    tied=False,
    activation="swiglu",
    positions="rope",
    biases=False,
    dense_layers=2,
    experts=4,
    topk=2,
    expert_ffn=128,
    router="sigmoid",
)
BALANCED: list[dict[str, Any]] = [{"router_bias": True}, {"balance_loss": 0.01}]


def _bounds(space: Space, order: Order, plan: Plan, op_bounds: OpBounds) -> IsolatedBlocks:
    """Of the one plan of a space."""
    zeros = np.zeros(1, dtype=np.int64)
    (entries,) = entries_of(space, zeros)
    lowered = LoweredSlots(next(sized(space, zeros, overlap=(), schedule=plan.schedule)))
    program = SlotProgram(lowered, order.overlap)
    some = placed(program.some, zeros, np.array([ORDERS.index(order.ranks)]))
    return IsolatedBlocks(op_bounds, some, entries, program)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("more", BALANCED)
def test_what_keeps_experts_evenly_used_takes_no_time_on_stages_without_any(
    schedule: str, more: dict[str, Any]
) -> None:
    """The first of two stages has the dense layers: it sums no counts of choices, which made its
    bound longer than the step, and adds no balancing loss."""
    shape = {"x": 1, "y": 1, "z": 1, "data": 64, "pipe": 2, "micro_batch": 1, "interleave": 1}
    how = {"schedule": schedule, "recompute": "none", "zero": 0, "order": "x-y-z-data-pipe"}
    order = Order(schedule, 1, (), "x-y-z-data-pipe")
    ends = []
    for gpt in (MIXED, replace(MIXED, **more)):
        problem = SearchProblem(gpt, 128, 256, {**shape, **how, "overlap": (), "expert": 1})
        (space,) = spaces_of(problem)
        fabric = MachineFabric(MACHINES["frontier"], 128)
        op_bounds = OpBounds(space, compute_costs(MACHINES["frontier"], 8, 128), fabric)
        slots = _bounds(space, order, space.plan(0, order), op_bounds)
        ends.append(slots.steps_of_stages(0))
        node = PipelineNode(space.plan(0, order), slots, 0, 0)
        step = predict(gpt, space.plan(0, order), MACHINES["frontier"]).step_s
        assert 0.95 * to_ticks(step) < node.ticks() <= to_ticks(step)
    assert ends[0][0] == ends[1][0]
    assert sum(ends[0][1]) < sum(ends[1][1])
