"""Playing a program: every rank class performs its ops, stream by stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.costs.kernel_launch import launch_bound
from simulator.engine.interference import FENCE, Interference
from simulator.engine.stream_graph import graph_of
from simulator.engine.streams import Engine, OpTicks, RankTask
from simulator.engine.ticks import to_seconds, to_ticks
from simulator.ranks.classes import Fabric, Ints, RankClasses, classes_of, until_consistent
from workload.errors import PlanCannotRunError
from workload.op import Op
from workload.program import Program
from workload.timeline import Span, Timeline


@dataclass(frozen=True)
class SimulatedOps:
    """When each op of each rank class started and ended, in ticks: arrays (classes, ops)."""

    program: Program
    network: RankClasses
    start: Ints
    end: Ints


def simulate_timeline(
    programs: Sequence[Program], costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> Timeline:
    """The predicted timeline of a step, given each pipeline stage's program; `unfold` simulates
    every rank instead of every class."""
    return until_consistent(
        lambda crowds: classes_of(programs, fabric, unfold=unfold, crowds=crowds),
        lambda network: timeline(
            programs, network, simulate_tasks(rank_tasks(programs, network), costs, network)
        ),
    )


def timeline(
    programs: Sequence[Program], network: RankClasses, times: Sequence[OpTicks]
) -> Timeline:
    """The spans of each class's representative rank, in issue order."""
    spans = []
    for rank, stage, (starts, ends) in zip(network.ranks, network.stages, times, strict=True):
        for op, start, end in zip(programs[stage].ops, starts, ends, strict=True):
            spans.append(Span(rank, op, to_seconds(start), to_seconds(end)))
    return Timeline("predicted", tuple(spans))


def simulate_unfolded(
    program: Program, costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> SimulatedOps:
    """Simulate one step of a pipeline of one stage with as many rank classes as it takes."""
    return until_consistent(
        lambda crowds: classes_of([program], fabric, unfold=unfold, crowds=crowds),
        lambda network: simulate_ops(program, costs, network),
    )


def simulate_ops(
    program: Program, costs: ComputeCosts, network: RankClasses, ops: Sequence[Op] | None = None
) -> SimulatedOps:
    """Simulate one step of a pipeline of one stage. `ops` may replace the program's ops by ones of
    other sizes."""
    timed = program.ops if ops is None else ops
    score = graph_of(program.outline)
    cast = [RankTask(number, score, timed) for number in range(len(network.ranks))]
    try:
        times = np.array(simulate_tasks(cast, costs, network), dtype=np.int64)
    except OverflowError as error:
        raise PlanCannotRunError("such a step takes more than 106 days: too long a time") from error
    return SimulatedOps(program, network, times[:, 0], times[:, 1])


def rank_tasks(programs: Sequence[Program], network: RankClasses) -> list[RankTask]:
    """Every class with its stage's program."""
    return [
        RankTask(number, graph_of(programs[stage].outline), programs[stage].ops)
        for number, stage in enumerate(network.stages)
    ]


def simulate_tasks(
    cast: Sequence[RankTask], costs: ComputeCosts, network: RankClasses
) -> list[OpTicks]:
    """When each op of each role starts and ends, in ticks; the roles meet in their collectives."""
    overlaps = any(role.score.can_overlap for role in cast)
    return Engine(network, overlaps=overlaps).performed(cast, durations_of(cast, costs, network))


def durations_of(
    cast: Sequence[RankTask], costs: ComputeCosts, network: RankClasses
) -> list[tuple[int, ...]]:
    """Ticks of every op for each role, as if nothing else were under way.

    Collectives in flight take from the compute beside them (`simulator/engine/interference.py`): a
    share of the time that they take alone, since one that others slow moves no more bytes through
    the device's memory than it would alone. Messages between stages take nothing, and neither slow
    collectives nor are slowed.
    """
    known: dict[tuple[int, tuple[str, ...]], _Durations] = {}
    result = []
    for role in cast:
        key = id(role.ops), tuple(role.due)
        if key not in known:
            known[key] = _durations(role, costs, network)
        alike = known[key]
        ticks = [
            own if times is None else times[role.number]
            for own, times in zip(alike.computed, alike.communicated, strict=True)
        ]
        if any(alike.issued):
            ticks = launch_bound(role.ops, ticks, alike.issued)
        share = network.fabric.compute_share
        result.append(tuple(alike.beside.charged(ticks, share, min, round, role.due)))
    return result


def carried_out(
    cast: Sequence[RankTask], costs: ComputeCosts, network: RankClasses
) -> list[dict[str, int]]:
    """What each role leaves under way on its streams, beside no compute of its own."""
    result = []
    for role, ticks in zip(cast, durations_of(cast, costs, network), strict=True):
        result.append(role.score.beside(tuple(role.due)).left_of(ticks, role.due))
    return result


@dataclass(frozen=True)
class _Durations:
    """What roles with the same ops have in common, op by op: the ticks of compute, those of
    communication for each class, those that the host takes; and what flies beside what."""

    computed: list[int]
    communicated: list[list[int] | None]
    issued: list[int]
    beside: Interference


def _durations(role: RankTask, costs: ComputeCosts, network: RankClasses) -> _Durations:
    return _Durations(
        [_compute_ticks(op, costs) for op in role.ops],
        [network.ticks(op) if op.communicates else None for op in role.ops],
        [to_ticks(costs.host_s(op)) for op in role.ops],
        role.score.beside(tuple(role.due)),
    )


def _compute_ticks(op: Op, costs: ComputeCosts) -> int:
    """A fence takes no time, and that of communication is the network's."""
    return 0 if op.communicates or op.kind == FENCE else to_ticks(costs.seconds(op))
