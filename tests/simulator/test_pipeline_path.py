"""The path of a pipeline slot by slot: by hand, and as long as the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.attribution.critical_path import simulated_step, ticks_by_cause
from simulator.attribution.pipeline_path import pipeline_causes
from simulator.costs.analytic import compute_costs
from simulator.engine.stream_graph import PIPE
from simulator.engine.ticks import to_ticks
from simulator.pipeline.schedule_sim import schedule_of, simulate_schedule
from simulator.pipeline.slot_path import SlotPath
from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from tests.simulator.test_pipeline import IN_FLIGHT, SPARSE, assert_slots_equal_ops
from tests.simulator.worlds import TINY, SmallCosts, SmallFabric
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.lowering import lower
from workload.passes.stack import StackBehaviour
from workload.pipeline.schedule import BACKWARD, FORWARD, slots
from workload.plan import Plan
from workload.plan_text import parse_plan


def test_the_path_of_two_stages_goes_over_and_back() -> None:
    """Forward 10, backward 20, a message 1. The second stage is busy from 11 to 71; the first
    one's last backward pass waits for it until 72."""
    orders = [slots("1f1b", stage, 2, 2, 1) for stage in range(2)]
    ticks = [[10 if slot.work == FORWARD else 20 for slot in order] for order in orders]
    pp = schedule_of(orders, ticks, links=[(1, 1)] * 2, messages="ahead", micro_batches=2)
    times = simulate_schedule(pp)
    assert times.stages[0].start[-1] == 72
    stretches = list(SlotPath(pp, times).back_from(0, 3))
    shown = [(what, stage, length) for what, stage, _, length in stretches]
    second = [("slot", 1, length) for length in (20, 10, 20, 10)]
    assert shown == [(PIPE, 0, 1), *second, (PIPE, 1, 1), ("slot", 0, 10)]


@pytest.mark.parametrize("overlap", ["all", "none"])
@pytest.mark.parametrize(
    "text",
    [
        "tp=2,dp=2,pp=2",
        "dp=2,pp=4",
        "dp=2,pp=4,schedule=zb-h1",
        "pp=2,vpp=2",
        "pp=2,vpp=2,dp=2,schedule=zb-v",
        "pp=4,schedule=gpipe",
        "pp=2,dp=2,zero=1,recompute=full",
    ],
)
def test_the_path_is_as_long_as_the_step(text: str, overlap: str) -> None:
    machine, gpt = load_machine("frontier"), find_model("tiny-1m")
    plan = parse_plan(f"{text},mbs=1,overlap={overlap}", batch=32)
    fabric = MachineFabric(machine, plan.grid.ranks)
    costs = compute_costs(machine, fabric.ranks_per_node, plan.grid.ranks)
    causes = pipeline_causes(gpt, plan, costs, fabric)
    prediction = predict(gpt, plan, machine)
    assert sum(causes.values()) == to_ticks(prediction.step_s)
    assert min(causes.values()) >= 0
    programs = [lower(gpt, plan, stage) for stage in range(plan.pp)]
    path = simulated_step(programs, costs, fabric).path()
    assert causes == ticks_by_cause(path)


@pytest.mark.parametrize("directions", [(FORWARD,), (FORWARD, BACKWARD)])
@pytest.mark.parametrize("overlap", [(), ("pp",)])
@pytest.mark.parametrize("keys", [{"pp": 3}, {"pp": 2, "vpp": 2}])
def test_messages_that_are_cut_in_one_direction_equal_their_ops(
    keys: dict[str, int], overlap: tuple[str, ...], directions: tuple[str, ...]
) -> None:
    """Gradients then take longer than activations, and their buffers are larger."""
    gpt = replace(TINY, layers=keys["pp"] * keys.get("vpp", 1))
    plan = Plan.of(tp=2, batch=6, mbs=1, overlap=overlap, **keys)
    assert_slots_equal_ops(gpt, plan, 1e7, behaviour=StackBehaviour(scatter_gather=directions))


@pytest.mark.parametrize("dense", [1, 4])
def test_the_path_goes_on_in_an_earlier_slot_that_left_a_sum_in_flight(dense: int) -> None:
    gpt = SPARSE.changed(dense_layers=dense)
    costs, fabric = SmallCosts(), SmallFabric(bytes_per_s=1e6, axes_share=False)
    programs = [lower(gpt, IN_FLIGHT, stage) for stage in range(2)]
    every = ticks_by_cause(simulated_step(programs, costs, fabric).path())
    assert pipeline_causes(gpt, IN_FLIGHT, costs, fabric) == every
