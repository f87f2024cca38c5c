"""Playing a program: every rank class performs its ops, stream by stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.actors import Performance, Role, Stage
from simulator.beside import FENCE, Beside
from simulator.costs import ComputeCosts
from simulator.host import hosted
from simulator.network import Fabric, Ints, Network, network_of, with_classes
from simulator.score import score_of
from simulator.ticks import to_seconds, to_ticks
from workload.errors import PlanCannotRunError
from workload.op import Op
from workload.program import Program
from workload.timeline import Span, Timeline


@dataclass(frozen=True)
class Run:
    """When each op of each rank class started and ended, in ticks: arrays (classes, ops)."""

    program: Program
    network: Network
    start: Ints
    end: Ints


def simulate(
    programs: Sequence[Program], costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> Timeline:
    """The predicted timeline of a step, given each pipeline stage's program; `unfold` simulates
    every rank instead of every class."""
    return with_classes(
        lambda crowds: network_of(programs, fabric, unfold=unfold, crowds=crowds),
        lambda network: timeline(
            programs, network, perform(roles(programs, network), costs, network)
        ),
    )


def timeline(
    programs: Sequence[Program], network: Network, times: Sequence[Performance]
) -> Timeline:
    """The spans of each class's representative rank, in issue order."""
    spans = []
    for rank, stage, (starts, ends) in zip(network.ranks, network.stages, times, strict=True):
        for op, start, end in zip(programs[stage].ops, starts, ends, strict=True):
            spans.append(Span(rank, op, to_seconds(start), to_seconds(end)))
    return Timeline("predicted", tuple(spans))


def play_whole(
    program: Program, costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> Run:
    """Simulate one step of a pipeline of one stage with as many rank classes as it takes."""
    return with_classes(
        lambda crowds: network_of([program], fabric, unfold=unfold, crowds=crowds),
        lambda network: play(program, costs, network),
    )


def play(
    program: Program, costs: ComputeCosts, network: Network, ops: Sequence[Op] | None = None
) -> Run:
    """Simulate one step of a pipeline of one stage. `ops` may replace the program's ops by ones of
    other sizes."""
    timed = program.ops if ops is None else ops
    score = score_of(program.outline)
    cast = [Role(number, score, timed) for number in range(len(network.ranks))]
    try:
        times = np.array(perform(cast, costs, network), dtype=np.int64)
    except OverflowError as error:
        raise PlanCannotRunError("such a step takes more than 106 days: too long a time") from error
    return Run(program, network, times[:, 0], times[:, 1])


def roles(programs: Sequence[Program], network: Network) -> list[Role]:
    """Every class with its stage's program."""
    return [
        Role(number, score_of(programs[stage].outline), programs[stage].ops)
        for number, stage in enumerate(network.stages)
    ]


def perform(cast: Sequence[Role], costs: ComputeCosts, network: Network) -> list[Performance]:
    """When each op of each role starts and ends, in ticks; the roles meet in their collectives."""
    overlaps = any(role.score.can_overlap for role in cast)
    return Stage(network, overlaps=overlaps).performed(cast, durations_of(cast, costs, network))


def durations_of(
    cast: Sequence[Role], costs: ComputeCosts, network: Network
) -> list[tuple[int, ...]]:
    """Ticks of every op for each role, as if nothing else were under way.

    Collectives in flight take from the compute beside them (`simulator/beside.py`): a share of the
    time that they take alone, since one that others slow moves no more bytes through the device's
    memory than it would alone. Messages between stages take nothing, and neither slow collectives
    nor are slowed.
    """
    known: dict[tuple[int, tuple[str, ...]], _Alike] = {}
    result = []
    for role in cast:
        key = id(role.ops), tuple(role.due)
        if key not in known:
            known[key] = _alike(role, costs, network)
        alike = known[key]
        ticks = [
            own if times is None else times[role.number]
            for own, times in zip(alike.computed, alike.communicated, strict=True)
        ]
        if any(alike.issued):
            ticks = hosted(role.ops, ticks, alike.issued)
        share = network.fabric.compute_share
        result.append(tuple(alike.beside.charged(ticks, share, min, round, role.due)))
    return result


def left_over(cast: Sequence[Role], costs: ComputeCosts, network: Network) -> list[dict[str, int]]:
    """What each role leaves under way on its streams, beside no compute of its own."""
    result = []
    for role, ticks in zip(cast, durations_of(cast, costs, network), strict=True):
        result.append(role.score.beside(tuple(role.due)).left_of(ticks, role.due))
    return result


@dataclass(frozen=True)
class _Alike:
    """What roles with the same ops have in common, op by op: the ticks of compute, those of
    communication for each class, those that the host takes; and what flies beside what."""

    computed: list[int]
    communicated: list[list[int] | None]
    issued: list[int]
    beside: Beside


def _alike(role: Role, costs: ComputeCosts, network: Network) -> _Alike:
    return _Alike(
        [_compute_ticks(op, costs) for op in role.ops],
        [network.ticks(op) if op.communicates else None for op in role.ops],
        [to_ticks(costs.host_s(op)) for op in role.ops],
        role.score.beside(tuple(role.due)),
    )


def _compute_ticks(op: Op, costs: ComputeCosts) -> int:
    """A fence takes no time, and that of communication is the network's."""
    return 0 if op.communicates or op.kind == FENCE else to_ticks(costs.seconds(op))
