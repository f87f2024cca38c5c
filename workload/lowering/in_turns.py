"""Programs whose slots run in turns, from those whose slots are each by themselves."""

from __future__ import annotations

from dataclasses import replace

from workload.passes.exchanges.pairs import in_pairs
from workload.pipeline.pairs import pairs_of
from workload.pipeline.schedule import OPPOSED
from workload.plan import Plan
from workload.program import Program
from workload.stages import stage_slots


def alone(plan: Plan) -> list[str]:
    """The plan's overlaps that leave pairs of a pipeline's slots by themselves."""
    return [name for name in plan.training.overlap if name != "a2a" or not plan.in_pairs]


def with_pairs(program: Program) -> Program:
    """The program of a stage's whole step with those slots in turns that its plan pairs."""
    plan, stage = program.plan, program.stage
    if not plan.in_pairs:
        return program
    order = stage_slots(plan, stage)
    pairs = pairs_of(order, stage, plan.pp, in_v=plan.pipeline.schedule in OPPOSED)
    return replace(program, ops=in_pairs(program.ops, program.slot_of, order, pairs), like=None)
