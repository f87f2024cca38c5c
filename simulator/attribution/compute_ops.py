"""The compute ops of the busiest rank of a step, with how often each runs and for how long.

They are the ops that `compute` and `optimizer` of a prediction's breakdown are made of, simulated
in the same way: what collectives in flight add to an op is in its time, and what it waits for the
host is not. Their ticks sum to these two, to the tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.attribution.breakdown import last_to_end
from simulator.costs.analytic import ComputeCosts
from simulator.engine.stream_graph import StreamGraph
from simulator.engine.streams import RankTask
from simulator.engine.whole_step import timed_step
from simulator.pipeline.pipeline_step import PipelineRun, asked_of_run
from simulator.pipeline.schedule_sim import busiest_stage
from simulator.pipeline.slot_cost import slowest_of
from simulator.pipeline.stage_orders import stage_orders_of
from simulator.ranks.classes import Fabric
from topologies.records import record
from workload.gpt import GPT
from workload.op import Op
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.sizes.arrays import Counts, Ticks

BUSY = ("compute", "optimizer")  # keys of a breakdown


@record
class OpTime:
    """An op of the compute stream that runs `count` times in a step, for `ticks` in all."""

    op: Op
    count: int
    ticks: int


@record(slots=False)
class ComputeOps:
    """The compute ops of a rank of the pipeline stage `stage`, whose time is broken down."""

    stage: int
    ops: Sequence[OpTime]


def compute_ops(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> ComputeOps:
    """The compute ops of a step, on the same costs and fabric as its prediction."""
    if plan.pp > 1:
        orders = stage_orders_of(gpt, plan, forms, behaviour)
        return asked_of_run(orders, costs, fabric, _of_stage)
    timed = timed_step(gpt, plan, costs, fabric, forms=forms, behaviour=behaviour)
    whole, last = timed.whole, last_to_end(timed.end + timed.delay)
    times = timed.start[last], timed.end[last] - timed.hosts(last)
    found = _timed(whole.graph, times, whole.copies(timed.omitted))
    return ComputeOps(0, list(found))


def _timed(graph: StreamGraph, times: tuple[Ticks, Ticks], copies: Counts) -> Iterator[OpTime]:
    """The compute ops among those of a graph, of which op i stands for `copies[i]`."""
    keys, key_of = graph.time_keys
    wanted = [number for number, key in enumerate(keys) if key in BUSY]
    at = graph.compute_ops[np.isin(key_of[graph.compute_ops], wanted)]
    start, end = times
    ops = graph.columns.ops
    ticks = np.zeros(len(ops), dtype=np.int64)
    counts = np.zeros_like(ticks)
    np.add.at(ticks, graph.source[at], (end[at] - start[at]) * copies[at])
    np.add.at(counts, graph.source[at], copies[at])
    for place in np.flatnonzero(ticks).tolist():
        yield OpTime(ops[place], int(counts[place]), int(ticks[place]))


def _of_stage(run: PipelineRun) -> ComputeOps:
    """The compute ops of the busiest stage: of its slots but the last, and of that with what comes
    after all slots, in the latest of its rank classes; all stages end together, as they meet in
    sums of gradients."""
    stage = busiest_stage(run.schedule)
    ends, last = run.ends, run.ends.latest_of(stage)
    once = np.ones(len(ends.tasks[last].graph.places), dtype=np.int64)
    found = list(_of_task(run, ends.tasks[last], ends.times[last], once))
    own = run.slots[stage]
    counts = own.counts
    counts[int(own.which[-1])] -= 1
    for (part, carry_ins), count in zip(own.slots, counts, strict=True):
        tasks = run.tasks(stage, part, carry_ins)
        simulated = run.simulated(tasks)
        slowest, _ = slowest_of(tasks, simulated)
        copies = np.full(len(part.graph.places), count, dtype=np.int64)
        found += _of_task(run, tasks[slowest], simulated[slowest], copies)
    return ComputeOps(stage, found)


def _of_task(
    run: PipelineRun, task: RankTask, times: tuple[Ticks, Ticks], copies: Counts
) -> Iterator[OpTime]:
    start, end = times
    return _timed(task.graph, (start, end - run.hosts(task)), copies)
