"""When each stage of a pipeline runs which slot, as in the step's prediction."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.ticks import to_seconds
from simulator.pipeline.pipeline_step import PipelineRun, asked_of_run
from simulator.pipeline.stage_orders import stage_orders_of
from simulator.predict import Prediction, op_costs
from simulator.ranks.fabric import MachineFabric
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from workload.passes.matmul_forms import PLAIN
from workload.pipeline.schedule import Slot
from workload.plan import Plan


@record
class SlotSpan:
    """A slot with its start and end in seconds after the step's begin."""

    slot: Slot
    start_s: float
    end_s: float


def pipeline_slots(
    prediction: Prediction, plan: Plan, machine: Machine, placement: Placement
) -> list[list[SlotSpan]]:
    """The slots of each stage of a prediction, in the order in which the stage runs them; `plan` is
    that of the prediction, or the same with fewer micro-batches."""
    fabric = MachineFabric(machine, plan.grid.ranks, placement)
    kernels = prediction.stack.kernels(prediction.gpt, plan, machine)
    costs = op_costs(plan, machine, fabric.ranks_per_node, None, kernels)
    forms = prediction.tuning.forms if prediction.tuning else PLAIN
    orders = stage_orders_of(prediction.gpt, plan, forms, kernels.behaviour)
    return asked_of_run(orders, costs, fabric, _spans)


def _spans(run: PipelineRun) -> list[list[SlotSpan]]:
    pairs = zip(run.schedule.orders, run.times.stages, strict=True)
    return [_of_stage(order, times.start.tolist(), times.end.tolist()) for order, times in pairs]


def _of_stage(order: Sequence[Slot], start: Sequence[int], end: Sequence[int]) -> list[SlotSpan]:
    each = zip(order, start, end, strict=True)
    return [SlotSpan(slot, to_seconds(begin), to_seconds(over)) for slot, begin, over in each]
