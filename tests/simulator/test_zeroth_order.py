"""Steps without backward passes: no bubble between passes, and exact with what repeats left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.limits import check_slots
from simulator.pipeline.schedule_sim import schedule_of, simulate_schedule
from tests.messages import names
from tests.simulator.drawn_steps import DrawnStep
from tests.simulator.test_pipeline import assert_slots_equal_ops
from tests.simulator.worlds import TINY
from workload.errors import PlanCannotRunError
from workload.pipeline.slot import PERTURB
from workload.plan_text import parse_plan
from workload.stages import stage_slots


def test_a_pipeline_of_two_passes_fills_and_drains_once() -> None:
    """4 stages, 2 x 6 micro-batches of 10 ticks each, in which a stage moves parameters for 3."""
    plan = parse_plan("pp=4,batch=6,mbs=1,optimizer=mezo")
    orders = [stage_slots(plan, stage) for stage in range(4)]
    schedule = schedule_of(
        orders=orders,
        ticks=[[3 if slot.work == PERTURB else 10 for slot in order] for order in orders],
        links=[(0, 0)] * 4,
        messages="ahead",
        micro_batches=12,
    )
    stages = simulate_schedule(schedule).stages
    assert max(times.end[-1] for times in stages) == 2 * 3 + (12 + 4 - 1) * 10


@pytest.mark.parametrize(
    "text",
    [
        "dp=2,pp=2,batch=12,mbs=2,optimizer=mezo",
        "tp=2,pp=4,vpp=2,batch=8,mbs=1,overlap=none,optimizer=mezo",
        "z=2,dp=2,pp=3,batch=20,mbs=1,optimizer=fedkseed-step",
    ],
)
def test_slots_take_as_long_as_their_ops(text: str) -> None:
    plan = parse_plan(text)
    layers = 2 * plan.pp * plan.vpp
    assert_slots_equal_ops(replace(TINY, layers=layers), plan)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tp=2,z=2,batch=18,mbs=1", "mezo"),
        ("dp=4,batch=8", "fedkseed-step"),
        pytest.param("tp=2,z=2,batch=18,mbs=1", "fedkseed-step", marks=pytest.mark.slow),
        pytest.param("dp=4,batch=8", "mezo", marks=pytest.mark.slow),
    ],
)
def test_a_step_of_many_layers_is_exact_from_a_few(rule: str, text: str) -> None:
    plan = parse_plan(f"{text},optimizer={rule}")
    assert DrawnStep(replace(TINY, layers=20), plan, 1e8, 0.2, 0.0).is_exact()


def test_a_step_that_is_too_long_to_simulate_whole_is_refused() -> None:
    plan = parse_plan("pp=64,batch=10000,mbs=1,optimizer=mezo")
    with pytest.raises(PlanCannotRunError, check=names("optimizer=mezo")):
        check_slots(plan)
