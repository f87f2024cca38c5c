"""When stages run their slots: bounds of every schedule, and a fill worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.attribution.pipeline_slots import SlotSpan, pipeline_slots
from simulator.predict import predict
from topologies.machine_files import load_machine
from topologies.placement_names import parse_placement
from workload.gpt import find_model
from workload.plan_text import parse_plan

MACHINE = load_machine("dgx-h100")


def slots_of(text: str) -> tuple[list[list[SlotSpan]], float]:
    plan, gpt = parse_plan(text, batch=32), find_model("tiny-2m")
    placement = parse_placement("scheduler", MACHINE, plan.grid.ranks)
    prediction = predict(gpt, plan, MACHINE, placement=placement)
    return pipeline_slots(prediction, plan, MACHINE, placement), prediction.step_s


@pytest.mark.parametrize(
    "text", ["pp=2,dp=4,mbs=1", "pp=2,vpp=2,dp=2,mbs=1", "pp=2,dp=2,mbs=1,schedule=zb-h1"]
)
def test_a_stage_runs_one_slot_after_the_other_within_the_step(text: str) -> None:
    stages, step_s = slots_of(text)
    for stage in stages:
        assert all(one.end_s <= other.start_s + 1e-12 for one, other in pairwise(stage))
        assert stage[0].start_s >= 0
        assert stage[-1].end_s <= step_s


def test_stages_begin_one_pass_after_the_other_and_have_all_micro_batches() -> None:
    """32 sequences over 4 replicas: 8 micro-batches, forward and backward."""
    (first, second), _ = slots_of("pp=2,dp=4,mbs=1")
    assert first[0].start_s == 0
    assert second[0].start_s >= first[0].end_s
    assert [len(first), len(second)] == [16, 16]
    assert {each.slot.micro_batch for each in second} == set(range(8))
