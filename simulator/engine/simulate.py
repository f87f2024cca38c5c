"""Simulating ops: their durations, and the engine that executes them on every rank class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from hashlib import blake2b

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.costs.kernel_launch import launch_bound
from simulator.engine.columns import Sorts
from simulator.engine.core import core
from simulator.engine.engines import SIMPY, TOO_LONG, engine_name, run
from simulator.engine.interference import FENCE
from simulator.engine.stream_graph import StreamGraph, graph_of
from simulator.engine.streams import OpTicks, RankTask
from simulator.engine.ticks import to_seconds, to_ticks
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.op import Op
from workload.program import Program
from workload.sizes.arrays import Ticks
from workload.timeline import Span, Timeline


@record(slots=False)
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
    tasks, prices = rank_tasks(programs, network), Prices(costs, network)
    times = simulate_tasks(tasks, prices)
    spans = []
    for rank, task, (starts, ends) in zip(network.ranks, tasks, times, strict=True):
        hosts = host_waits(task, prices).tolist()
        for op, start, end, host in zip(task.graph.ops, starts, ends, hosts, strict=True):
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
    tasks = [RankTask(number, graph) for number in range(len(network.ranks))]
    return SimulatedOps(program, network, *times_of(tasks, Prices(costs, network)))


def times_of(tasks: Sequence[RankTask], prices: Prices) -> tuple[Ticks, Ticks]:
    """When each op of each task starts and ends: arrays (tasks, ops), of tasks of one program."""
    times = arrays_of_tasks(tasks, prices)
    return np.stack([start for start, _ in times]), np.stack([end for _, end in times])


def rank_tasks(programs: Sequence[Program], network: RankClasses) -> list[RankTask]:
    """Every class with its stage's program."""
    return [
        RankTask(number, graph_of(programs[stage].outline))
        for number, stage in enumerate(network.stages)
    ]


def simulate_tasks(tasks: Sequence[RankTask], prices: Prices) -> list[OpTicks]:
    """When each op of each task starts and ends, in ticks."""
    return [(start.tolist(), end.tolist()) for start, end in arrays_of_tasks(tasks, prices)]


def arrays_of_tasks(tasks: Sequence[RankTask], prices: Prices) -> list[tuple[Ticks, Ticks]]:
    """When each op of each task starts and ends, in ticks, as arrays."""
    overlaps = any(task.graph.can_overlap for task in tasks)
    return run(prices.network, tasks, durations_of(tasks, prices), overlaps=overlaps)


def host_waits(task: RankTask, prices: Prices) -> Ticks:
    """By op of a task, for how many of its ticks the device waits for the host that issues
    kernels."""
    return prices.issued(task)[1]


def durations_of(tasks: Sequence[RankTask], prices: Prices) -> list[Ticks]:
    """Isolated ticks of every op for each task, and what interference adds to compute.

    Interference is a share of a collective's isolated duration: one that is slowed by contention
    moves no more bytes through the device's memory than it would alone. Messages between stages
    neither interfere nor contend.
    """
    share, result = prices.network.fabric.compute_share, []
    for task in tasks:
        ticks, _ = prices.issued(task)
        if share:
            beside = task.graph.interference(tuple(task.carry_in))
            slowed = beside.slowed(ticks, share, task.carry_in)
            if (slowed < ticks).any():
                raise PlanCannotRunError(TOO_LONG)
            ticks = slowed
        result.append(ticks)
    return result


def carry_outs(tasks: Sequence[RankTask], prices: Prices) -> list[dict[str, int]]:
    """By task and stream: ticks of the collectives that have no compute behind them."""
    result = []
    for task, ticks in zip(tasks, durations_of(tasks, prices), strict=True):
        found = task.graph.interference(tuple(task.carry_in)).carry_out(ticks, task.carry_in)
        result.append({stream: int(left) for stream, left in found.items()})
    return result


@record(slots=False)
class SortTicks:
    """Ticks of each sort: `alone` for each rank class, (classes, sorts), and `issued`, which the
    host takes to issue an op of it, (sorts,)."""

    alone: Ticks
    issued: Ticks

    @property
    def digest(self) -> bytes:
        """Equal for equal ticks."""
        return blake2b(self.alone.tobytes() + self.issued.tobytes()).digest()


@record(slots=False)
class Prices:
    """What ops take with some costs on a network: worked out once for each sort of ops."""

    costs: ComputeCosts
    network: RankClasses
    _known: dict[Sorts, SortTicks] = field(default_factory=dict, repr=False)

    def issued(self, task: RankTask) -> tuple[Ticks, Ticks]:
        """Ticks of a task's ops, isolated but for the host, and how many of them are waits for
        it."""
        graph, ticks = task.graph, self.of(task.graph.columns.sorts)
        alone = ticks.alone[task.number][graph.sort]
        if not ticks.issued.any():
            return alone, np.zeros_like(alone)
        own = as_issued(graph, alone, ticks.issued[graph.sort])
        return own, own - alone

    def of(self, sorts: Sorts) -> SortTicks:
        """Ticks of some sorts of ops."""
        if sorts not in self._known:
            self._known[sorts] = self._priced(sorts)
        return self._known[sorts]

    def _priced(self, sorts: Sorts) -> SortTicks:
        classes = len(self.network.ranks)
        computed = [_compute_ticks(op, self.costs) for op in sorts.ops]
        alone = np.tile(_ticks(computed), (classes, 1))
        for at, op in enumerate(sorts.ops):
            if op.communicates:
                alone[:, at] = _ticks(self.network.ticks(op))
        issued = [to_ticks(self.costs.host_s(op)) for op in sorts.ops]
        return SortTicks(alone, _ticks(issued))


def as_issued(graph: StreamGraph, alone: Ticks, each: Ticks) -> Ticks:
    """Ticks of ops as a host allows that takes so many ticks to issue each."""
    if engine_name() == SIMPY:
        copies = graph.issued_blocks.tolist()
        return _ticks(launch_bound(graph.ops, alone.tolist(), each.tolist(), copies))
    result = alone.copy()
    core.issue(graph.issued_blocks, graph.issuing, alone, each, result)
    return result


def _ticks(each: list[int]) -> Ticks:
    try:
        return np.array(each, dtype=np.int64)
    except OverflowError as error:
        raise PlanCannotRunError(TOO_LONG) from error


def _compute_ticks(op: Op, costs: ComputeCosts) -> int:
    """A fence takes no time, and that of communication is the network's."""
    return 0 if op.communicates or op.kind == FENCE else to_ticks(costs.seconds(op))
