"""The mildest change of a job's plan with which it may fit into its devices' memory: with which its
verdict is `fits` or `tight` (`simulator/step_memory.py`).

Changes are tried in this order: the stack's selective recomputation, recomputation of as few whole
layers as are enough, then both again with the optimizer's states sharded over data. The plan of a
run that is known to have run is taken as read unless its predicted peak exceeds the memory by more
than `DOUBTED`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks import Stack
from simulator.stacks.held import held_of
from simulator.stacks.job import Job
from simulator.step_memory import room_for
from simulator.uncertainty.fitting import UNLIKELY
from topologies.errors import SimgptError
from topologies.machine import Machine
from workload.passes.stack import StackBehaviour
from workload.plan import Plan

Change = Mapping[str, Any]
# Predicted peak over memory above which the reading of a run that ran is doubted. Predicted peaks
# are 5 % off allocated ones and 20 % off what devices held; this lies between the two
# (docs/accuracy.md, "What runs out of memory, and peaks").
DOUBTED = 1.15


def does_fit(job: Job, machine: Machine) -> bool:
    """Whether the fullest stage of the job's plan may fit: with P > 0.1."""
    room = room_for(machine, job.stack, experts=bool(job.gpt.moe.experts))
    own = memory_of_stack(job.stack, job.plan)
    return plan_bytes(job.gpt, job.plan, own) <= room.most_bytes(UNLIKELY)


def share_of_memory(job: Job, machine: Machine) -> float:
    """The peak of the fullest stage of the job's plan over what a device has for tensors."""
    room = room_for(machine, job.stack, experts=bool(job.gpt.moe.experts))
    own = memory_of_stack(job.stack, job.plan)
    return plan_bytes(job.gpt, job.plan, own) / room.capacity_bytes


def memory_of_stack(stack: Stack, plan: Plan) -> StackBehaviour:
    """What of a stack's behaviour changes memory: the order of messages, what pipelines hold whole
    for all micro-batches, and what the stack holds unlike others."""
    once = plan.pp > 1 and bool(stack.own_kernels.get("once_a_step", False))
    messages = stack.messages if plan.pp > 1 else ""
    held = held_of(stack.memory)
    return StackBehaviour(messages=messages, once_a_step=once, held=held)


def nearest_changes(job: Job) -> Iterator[tuple[Change, ...]]:
    """Rows of changes that reduce a plan's memory, the mildest row first. Within a row each change
    reduces it more than the one before, so the first that is enough can be found by bisection."""
    rows = _recomputed_more(job)
    yield from rows
    if job.plan.zero == 0 and job.plan.dp > 1:
        yield ({"zero": 1},)
        yield from (tuple({"zero": 1, **change} for change in row) for row in rows)


def _recomputed_more(job: Job) -> list[tuple[Change, ...]]:
    """What may be recomputed besides: selectively, or the first layers of each chunk whole."""
    plan = job.plan
    layers = max(job.gpt.layers // (plan.pp * plan.vpp), 1)
    if plan.training.recompute == "full":
        return []
    again = int(plan.training.recompute.split(":")[1]) if ":" in plan.training.recompute else 0
    whole = [f"full:{count}" for count in range(again + 1, layers)]
    rows: list[tuple[Change, ...]] = [tuple({"recompute": word} for word in [*whole, "full"])]
    if plan.training.recompute == "none":
        rows.insert(0, ({"recompute": job.stack.recompute("selective")},))
    return rows


def changed_job(job: Job, change: Change) -> Job | None:
    """The job with a change of its plan, or None where its stack does not run it."""
    try:
        plan = job.plan.changed(**change)
        job.stack.check(plan, job.gpt)
    except SimgptError:
        return None
    return replace(job, plan=plan)


def fitting_change(job: Job, machine: Machine) -> Change | None:
    """The nearest change with which the plan fits: none where it does as it is, None where no
    change of these is enough."""
    if does_fit(job, machine):
        return {}
    for row in nearest_changes(job):
        jobs = [(change, changed_job(job, change)) for change in row]
        run = [(change, other) for change, other in jobs if other is not None]
        enough = bisect_left(run, True, key=lambda each: does_fit(each[1], machine))
        if enough < len(run):
            return run[enough][0]
    return None


def text_of_change(change: Change) -> str:
    """A change as a plan has it: `zero=1,recompute=full`."""
    return ",".join(f"{key}={value}" for key, value in change.items())
