"""Simulating ops: their durations, and the engine that executes them on every rank class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.costs.kernel_launch import launch_bound
from simulator.engine.engines import TOO_LONG, run
from simulator.engine.interference import FENCE
from simulator.engine.stream_graph import StreamGraph, graph_of
from simulator.engine.streams import OpTicks, RankTask
from simulator.engine.ticks import to_seconds, to_ticks
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from workload.errors import PlanCannotRunError
from workload.op import Op
from workload.program import Program
from workload.sizes.arrays import Ticks
from workload.timeline import Span, Timeline


@dataclass(frozen=True)
class SimulatedOps:
    """When each op of each rank class started and ended, in ticks: arrays (classes, ops)."""

    program: Program
    network: RankClasses
    start: Ticks
    end: Ticks


def simulate_timeline(
    programs: Sequence[Program], costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> Timeline:
    """The predicted timeline of a step, given each pipeline stage's program; `unfold` simulates
    every rank instead of every class."""
    return until_consistent(
        lambda contended: classes_of(programs, fabric, unfold=unfold, contended=contended),
        lambda network: timeline(programs, costs, network),
    )


def timeline(programs: Sequence[Program], costs: ComputeCosts, network: RankClasses) -> Timeline:
    """The spans of each class's representative rank, in issue order. What a kernel waits for the
    host is before its span."""
    tasks = rank_tasks(programs, network)
    known: KnownDurations = {}
    times = simulate_tasks(tasks, costs, network, known)
    spans = []
    for rank, task, (starts, ends) in zip(network.ranks, tasks, times, strict=True):
        hosts = host_waits(task, costs, network, known).tolist()
        for op, start, end, host in zip(task.ops, starts, ends, hosts, strict=True):
            spans.append(
                Span(rank, op, to_seconds(start + host), to_seconds(end), to_seconds(host))
            )
    return Timeline("predicted", tuple(spans))


def simulate_unfolded(
    program: Program, costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> SimulatedOps:
    """Simulate one step of a pipeline of one stage with as many rank classes as it takes."""
    return until_consistent(
        lambda contended: classes_of([program], fabric, unfold=unfold, contended=contended),
        lambda network: simulate_ops(program, costs, network),
    )


def simulate_ops(program: Program, costs: ComputeCosts, network: RankClasses) -> SimulatedOps:
    """Simulate one step of a pipeline of one stage."""
    graph = graph_of(program.outline)
    tasks = [RankTask(number, graph, program.ops) for number in range(len(network.ranks))]
    return SimulatedOps(program, network, *times_of(tasks, costs, network))


def times_of(
    tasks: Sequence[RankTask], costs: ComputeCosts, network: RankClasses
) -> tuple[Ticks, Ticks]:
    """When each op of each task starts and ends: arrays (tasks, ops), of tasks of one program."""
    times = arrays_of_tasks(tasks, costs, network)
    return np.stack([start for start, _ in times]), np.stack([end for _, end in times])


def rank_tasks(programs: Sequence[Program], network: RankClasses) -> list[RankTask]:
    """Every class with its stage's program."""
    return [
        RankTask(number, graph_of(programs[stage].outline), programs[stage].ops)
        for number, stage in enumerate(network.stages)
    ]


def simulate_tasks(
    tasks: Sequence[RankTask],
    costs: ComputeCosts,
    network: RankClasses,
    known: KnownDurations | None = None,
) -> list[OpTicks]:
    """When each op of each task starts and ends, in ticks; `known` as in `durations_of`."""
    times = arrays_of_tasks(tasks, costs, network, known)
    return [(start.tolist(), end.tolist()) for start, end in times]


def arrays_of_tasks(
    tasks: Sequence[RankTask],
    costs: ComputeCosts,
    network: RankClasses,
    known: KnownDurations | None = None,
) -> list[tuple[Ticks, Ticks]]:
    """The same as arrays."""
    overlaps = any(task.graph.can_overlap for task in tasks)
    return run(network, tasks, durations_of(tasks, costs, network, known), overlaps=overlaps)


def host_waits(
    task: RankTask,
    costs: ComputeCosts,
    network: RankClasses,
    known: KnownDurations | None = None,
) -> Ticks:
    """By op of a task, for how many of its ticks the device waits for the host that issues kernels;
    `known` as in `durations_of`."""
    shared = _shared(task, costs, network, {} if known is None else known)
    return _as_issued(task, shared)[1]


def durations_of(
    tasks: Sequence[RankTask],
    costs: ComputeCosts,
    network: RankClasses,
    known: KnownDurations | None = None,
) -> list[Ticks]:
    """Isolated ticks of every op for each task, and what interference adds to compute. `known` has
    those found so far with the same costs on the same network, and takes up the others.

    Interference is a share of a collective's isolated duration: one that is slowed by contention
    moves no more bytes through the device's memory than it would alone. Messages between stages
    neither interfere nor contend.
    """
    known = {} if known is None else known
    result = []
    for task in tasks:
        ticks, _ = _as_issued(task, _shared(task, costs, network, known))
        beside = task.graph.interference(tuple(task.carry_in))
        slowed = beside.slowed(ticks, network.fabric.compute_share, task.carry_in)
        if (slowed < ticks).any():
            raise PlanCannotRunError(TOO_LONG)
        result.append(slowed)
    return result


def carry_outs(
    tasks: Sequence[RankTask],
    costs: ComputeCosts,
    network: RankClasses,
    known: KnownDurations | None = None,
) -> list[dict[str, int]]:
    """By task and stream: ticks of the collectives that have no compute behind them; `known` as in
    `durations_of`."""
    result = []
    for task, ticks in zip(tasks, durations_of(tasks, costs, network, known), strict=True):
        found = task.graph.interference(tuple(task.carry_in)).carry_out(ticks, task.carry_in)
        result.append({stream: int(left) for stream, left in found.items()})
    return result


@dataclass(frozen=True)
class _Durations:
    """Durations that tasks with the same ops have in common, for each sort of equal ops.

    `computed` has ticks of compute, `communicated` those of the sorts in `places`, communication,
    for each rank class; `issued` those that the host takes to issue an op, for each sort of equal
    ops with one label.
    """

    computed: Ticks
    places: list[int]
    communicated: list[list[int]]
    issued: Ticks


KnownDurations = dict[StreamGraph, list[tuple[Sequence[Op], _Durations]]]


def _shared(
    task: RankTask, costs: ComputeCosts, network: RankClasses, known: KnownDurations
) -> _Durations:
    """What is known of the task's ops, or is from now on."""
    same_graph = known.setdefault(task.graph, [])
    shared = next((found for ops, found in same_graph if ops is task.ops), None)
    if shared is None:
        shared = _durations(task, costs, network)
        same_graph.append((task.ops, shared))
    return shared


def _as_issued(task: RankTask, shared: _Durations) -> tuple[Ticks, Ticks]:
    """Ticks of a task's ops, isolated but for the host, and how many of them are waits for it."""
    own, sort = shared.computed.copy(), task.graph.equal.sort[task.graph.base]
    own[shared.places] = _ticks([times[task.number] for times in shared.communicated])
    alone = own[sort]
    if not shared.issued.any():
        return alone, np.zeros_like(alone)
    labelled = task.graph.issued_alike.sort[task.graph.base]
    issued, copies = shared.issued[labelled].tolist(), task.graph.shift.tolist()
    ticks = _ticks(launch_bound(task.graph.ops, alone.tolist(), issued, copies))
    return ticks, ticks - alone


def _durations(task: RankTask, costs: ComputeCosts, network: RankClasses) -> _Durations:
    ops = [task.ops[at] for at in task.graph.equal.first.tolist()]
    places = [at for at, op in enumerate(ops) if op.communicates]
    labelled = task.graph.issued_alike.first.tolist()
    return _Durations(
        _ticks([_compute_ticks(op, costs) for op in ops]),
        places,
        [network.ticks(ops[at]) for at in places],
        _ticks([to_ticks(costs.host_s(task.ops[at])) for at in labelled]),
    )


def _ticks(each: list[int]) -> Ticks:
    try:
        return np.array(each, dtype=np.int64)
    except OverflowError as error:
        raise PlanCannotRunError(TOO_LONG) from error


def _compute_ticks(op: Op, costs: ComputeCosts) -> int:
    """A fence takes no time, and that of communication is the network's."""
    return 0 if op.communicates or op.kind == FENCE else to_ticks(costs.seconds(op))
