"""The nearest setting of a job's plan that fits into its devices' memory.

What a plan leaves in memory is lessened step by step: by recomputation, of ever more layers, then
from the beginning with the optimizer's states sharded over data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks import Stack
from simulator.stacks.held import held_of
from simulator.stacks.job import Job
from simulator.step_memory import room_for_tensors
from topologies.errors import SimgptError
from topologies.machine import Machine
from workload.passes.stack import Habits
from workload.plan import Plan

Change = Mapping[str, Any]


def does_fit(job: Job, machine: Machine) -> bool:
    """Whether the fullest stage of the job's plan fits into what a device has for tensors."""
    room = room_for_tensors(machine, job.stack)
    own = habits_in_memory(job.stack, job.plan)
    return plan_bytes(job.gpt, job.plan, own) <= room


def habits_in_memory(stack: Stack, plan: Plan) -> Habits:
    """Those of a stack's habits that change what is in memory: fp8, the order of messages, and what
    pipelines hold whole for all micro-batches, and what the stack holds unlike others."""
    once = plan.pipe > 1 and bool(stack.own_kernels.get("once_a_step", False))
    messages = stack.messages if plan.pipe > 1 else ""
    held = held_of(stack.memory)
    return Habits(fp8=stack.fp8, messages=messages, once_a_step=once, held=held)


def nearest_changes(job: Job) -> Iterator[Change]:
    """Changes of a plan that lessen its memory, the mildest first."""
    plan = job.plan
    layers = max(job.gpt.layers // (plan.pipe * plan.interleave), 1)
    some = [f"full:{1 << n}" for n in range(layers.bit_length()) if 1 << n < layers]
    mildest = job.stack.recompute("selective")
    more = [mildest, *some, "full"] if plan.recompute == "none" else ["full"]
    more = [] if plan.recompute == "full" else more
    yield from ({"recompute": word} for word in more)
    if plan.zero == 0 and plan.data > 1:
        yield {"zero": 1}
        yield from ({"zero": 1, "recompute": word} for word in more)


def changed_job(job: Job, change: Change) -> Job | None:
    """The job with a change of its plan, or None where its stack does not run it."""
    try:
        plan = replace(job.plan, **change)
        job.stack.check(plan, job.gpt)
    except SimgptError:
        return None
    return replace(job, plan=plan)


def fitting_change(job: Job, machine: Machine) -> Change | None:
    """The nearest change with which the plan fits: none where it does as it is, None where no
    change of these is enough."""
    if does_fit(job, machine):
        return {}
    for change in nearest_changes(job):
        other = changed_job(job, change)
        if other is not None and does_fit(other, machine):
            return change
    return None


def text_of_change(change: Change) -> str:
    """A change as a plan has it: `zero=1,recompute=full`."""
    return ",".join(f"{key}={value}" for key, value in change.items())
