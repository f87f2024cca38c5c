"""From a plan to its step as all ranks execute it."""

from __future__ import annotations

from simulator.costs.analytic import ComputeCosts
from simulator.engine.whole_step import timed_step
from simulator.noise.one_stage import OneStage
from simulator.noise.pipeline import Pipeline
from simulator.noise.pipeline_steps import stage_steps
from simulator.noise.played import AllRanks
from simulator.pipeline.pipeline_step import PipelineRun, asked_of_run
from simulator.pipeline.stage_orders import stage_orders_of
from simulator.ranks.classes import Fabric
from workload.gpt import GPT
from workload.lowering import check
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan


def all_ranks(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> AllRanks:
    """The step of a plan, simulated by rank classes first."""
    if plan.pp == 1:
        return OneStage(timed_step(gpt, plan, costs, fabric, forms=forms, behaviour=behaviour))
    check(gpt, plan)
    orders = stage_orders_of(gpt, plan, forms, behaviour)
    return asked_of_run(orders, costs, fabric, _pipeline)


def _pipeline(run: PipelineRun) -> Pipeline:
    schedule, stages = stage_steps(run)
    return Pipeline(run.network, schedule, stages)
