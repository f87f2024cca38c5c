"""A lower bound on the peak of a deep model's plan, from models with fewer layers.

A stage's peak is the maximum over its moments of the bytes held, and at each moment every further
layer of a chunk adds the same number of bytes. So the peak is a convex function of the layers of a
chunk, and the line through the peaks of two small models is a lower bound for every larger one.
Where even this bound is far above the memory, the plan itself need not be lowered.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.explain.nearest_fit import memory_of_stack
from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks.job import Job
from workload.gpt import GPT
from workload.plan import Plan

FEW = 3  # layers of the chunk with fewest in the smaller of the two models


def job_bytes(job: Job) -> int:
    """The peak of the fullest stage of a job's plan."""
    return plan_bytes(job.gpt, job.plan, memory_of_stack(job.stack, job.plan))


def least_bytes(job: Job) -> int:
    """No more than that, and soon known; 0 where no smaller model tells."""
    gpt, plan = job.gpt, job.plan
    behaviour = memory_of_stack(job.stack, plan)
    less = _fewest(gpt, plan) - FEW
    if plan.pp == 1 or less < 2 or not _is_even(gpt) or behaviour.held.updates_in_groups(gpt, plan):
        return 0
    small, large = (plan_bytes(*_with_less(gpt, plan, by), behaviour) for by in (less, less - 1))
    return small + less * (large - small)


def _is_even(gpt: GPT) -> bool:
    """Whether all layers are alike."""
    return not (gpt.moe.experts or gpt.mtp.layers or gpt.pattern or gpt.attention.global_every)


def _fewest(gpt: GPT, plan: Plan) -> int:
    """The layers of the chunk with fewest."""
    if plan.pipeline.stage_layers:
        return min(plan.pipeline.stage_layers)
    ends = 2 if plan.pipeline.ends_as_layers else 0
    return (gpt.layers + ends) // (plan.pp * plan.vpp) - ends // 2


def _with_less(gpt: GPT, plan: Plan, by: int) -> tuple[GPT, Plan]:
    """A model and a plan of which each chunk has so many layers less."""
    each = tuple(layers - by for layers in plan.pipeline.stage_layers)
    shorter = replace(gpt, layers=gpt.layers - by * plan.pp * plan.vpp)
    return shorter, plan.changed(stage_layers=each)
