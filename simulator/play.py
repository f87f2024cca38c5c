"""Playing a program: every rank class performs its ops, stream by stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from simulator.actors import Performance, Role, Stage
from simulator.costs import ComputeCosts
from simulator.host import hosted
from simulator.network import Fabric, Ints, Network, network_of, with_classes
from simulator.ticks import to_seconds, to_ticks
from workload.dataflow import Waits
from workload.op import COMPUTE, Op
from workload.program import Program
from workload.timeline import Span, Timeline

FENCE = "fence"
Ticks = TypeVar("Ticks", int, Ints)


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


def can_overlap(ops: Sequence[Op]) -> bool:
    """Whether a rank may have several collectives in flight at once."""
    return len({op.stream for op in ops if op.is_collective}) > 1


def play(
    program: Program, costs: ComputeCosts, network: Network, ops: Sequence[Op] | None = None
) -> Run:
    """Simulate one step of a pipeline of one stage. `ops` may replace the program's ops by ones of
    other sizes."""
    timed = program.ops if ops is None else ops
    cast = [Role(number, timed, program.waits) for number in range(len(network.ranks))]
    times = np.array(perform(cast, costs, network), dtype=np.int64)
    return Run(program, network, times[:, 0], times[:, 1])


def roles(programs: Sequence[Program], network: Network) -> list[Role]:
    """Every class with its stage's program."""
    return [
        Role(number, programs[stage].ops, programs[stage].waits)
        for number, stage in enumerate(network.stages)
    ]


def perform(cast: Sequence[Role], costs: ComputeCosts, network: Network) -> list[Performance]:
    """When each op of each role starts and ends, in ticks; the roles meet in their collectives."""
    streams = any(can_overlap(ops) for ops in {id(role.ops): role.ops for role in cast}.values())
    return Stage(network, overlaps=streams).performed(cast, durations_of(cast, costs, network))


def durations_of(
    cast: Sequence[Role], costs: ComputeCosts, network: Network
) -> list[tuple[int, ...]]:
    """Ticks of every op for each role, as if nothing else were under way.

    What an overlapped collective takes from its device's compute is charged to the next compute op,
    the one issued beside it; what roles owe, to their first. It is a share of the collective's time
    alone: one that others slow moves no more bytes through the device's memory than it would alone.
    Messages between stages take nothing, and neither slow collectives nor are slowed.
    """
    known: dict[int, _Alike] = {}
    result = []
    for role in cast:
        if id(role.ops) not in known:
            known[id(role.ops)] = _alike(role, costs, network)
        alike = known[id(role.ops)]
        ticks = [
            own if times is None else times[role.number]
            for own, times in zip(alike.computed, alike.communicated, strict=True)
        ]
        if any(alike.issued):
            ticks = hosted(role.ops, ticks, alike.issued)
        ticks = alike.charges.added(ticks, network.fabric.compute_share, round)
        if role.owed and alike.charges.first is not None:
            ticks[alike.charges.first] += role.owed
        result.append(tuple(ticks))
    return result


def left_ticks(cast: Sequence[Role], costs: ComputeCosts, network: Network) -> tuple[int, ...]:
    """What each role leaves to the first compute op of what follows it: the charges for its
    collectives that no compute op of its own follows, and all that it owes if it has none."""
    share, result = network.fabric.compute_share, []
    for role, ticks in zip(cast, durations_of(cast, costs, network), strict=True):
        charges = charges_of(role.ops, role.waits)
        left = sum(round(share * ticks[index]) for index in charges.left)
        result.append(left if charges.first is not None else left + role.owed)
    return tuple(result)


@dataclass(frozen=True)
class _Alike:
    """What roles with the same ops have in common, op by op: the ticks of compute, those of
    communication for each class, those that the host takes; and what compute is charged."""

    computed: list[int]
    communicated: list[list[int] | None]
    issued: list[int]
    charges: Charges


def _alike(role: Role, costs: ComputeCosts, network: Network) -> _Alike:
    return _Alike(
        [_compute_ticks(op, costs) for op in role.ops],
        [network.ticks(op) if op.communicates else None for op in role.ops],
        [to_ticks(costs.host_s(op)) for op in role.ops],
        charges_of(role.ops, role.waits),
    )


def _compute_ticks(op: Op, costs: ComputeCosts) -> int:
    """A fence takes no time, and that of communication is the network's."""
    return 0 if op.communicates or op.kind == FENCE else to_ticks(costs.seconds(op))


@dataclass(frozen=True)
class Charges:
    """Which overlapped collectives take time from which compute op: those `beside` it. `left` are
    the ones that no compute op follows, `first` is the first compute op.

    A collective that the next compute op itself waits for runs beside nothing: it costs none.
    """

    beside: Mapping[int, Sequence[int]]
    left: Sequence[int]
    first: int | None

    def added(
        self, alone: Sequence[Ticks], share: float, rounded: Callable[[Any], Ticks]
    ) -> list[Ticks]:
        """Ticks of ops (numbers, or arrays with one for each of many plans) with the charges."""
        result = list(alone)
        for index, beside in self.beside.items() if share else ():
            for i in beside:
                result[index] = result[index] + rounded(share * alone[i])
        return result


def charges_of(ops: Sequence[Op], waits: Sequence[Waits]) -> Charges:
    """The charges of some ops. A fence is no compute: it takes no time that could grow."""
    left: list[int] = []
    beside: dict[int, list[int]] = {}
    first = None
    for index, op in enumerate(ops):
        if op.is_collective:
            if op.stream != COMPUTE:
                left.append(index)
        elif op.stream == COMPUTE and op.kind != FENCE:
            first = index if first is None else first
            reached = {ops[awaited].stream: awaited for awaited in waits[index]}
            if own := [i for i in left if i > reached.get(ops[i].stream, -1)]:
                beside[index] = own
            left = []
    return Charges(beside, left, first)
