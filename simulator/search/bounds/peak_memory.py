"""What a plan has in memory, to the byte, before anything is known of its time."""

from __future__ import annotations

from simulator.engine.folding import step_bytes
from simulator.pipeline.pipeline_step import StageOrders
from simulator.pipeline.schedule_sim import SlotSchedule
from simulator.pipeline.stage_memory import stage_peak
from simulator.pipeline.steady_rounds import folded_plan
from workload.gpt import GPT
from workload.passes.matmul_forms import PLAIN
from workload.plan import Plan


def plan_bytes(gpt: GPT, plan: Plan) -> int:
    """The peak of the worst device, with plain matmul forms."""
    return pipeline_bytes(gpt, plan) if plan.pipe > 1 else step_bytes(gpt, plan)


def pipeline_bytes(gpt: GPT, plan: Plan) -> int:
    """The peak of a pipeline's worst stage: that follows from the order of slots alone."""
    lines = StageOrders(gpt, plan, folded_plan(plan), PLAIN)
    pipe = SlotSchedule(
        orders=lines.orders,
        ticks=[[0] * len(order) for order in lines.orders],
        links=[0] * plan.pipe,
        overlapped="pp" in plan.overlap,
        micro_batches=lines.small.micro_batches,
    )
    peaks = (
        stage_peak(kind, pipe, stage, plan.micro_batches) for stage, kind in enumerate(lines.kinds)
    )
    return max(use.total_bytes for use in peaks)
