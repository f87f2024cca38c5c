"""Playing a program: one SimPy process per rank class and stream walks its ops in issue order.

An op starts when the op before it on its stream and the ops it waits for on other streams are done;
a collective moreover when every class of its group has come to it. Where collectives of several
streams may be in flight at once, `Traffic` says when each is over; else they last as long as alone.
A stream keeps its own clock, which runs ahead of the simulation's through ops that concern nobody
else, and catches up with it before it waits for, meets or tells anyone: that spares most of the
events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import simpy

from simulator.costs import ComputeCosts
from simulator.host import hosted
from simulator.network import Fabric, Ints, Network, network_of, with_classes
from simulator.ticks import to_seconds, to_ticks
from simulator.traffic import Traffic
from workload.dataflow import Waits
from workload.op import COMPUTE, Op
from workload.program import Program
from workload.timeline import Span, Timeline

Life = Generator[simpy.Event, None, None]
Performance = tuple[list[int], list[int]]  # starts and ends of a role's ops
Meeting = tuple[str, tuple[str, ...], int]  # of which op, over which group, and which of its many
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


@dataclass(frozen=True)
class Role:
    """What one rank class performs: ops with their waits. `floors` has the ticks before which some
    of them, by their places, cannot start."""

    number: int
    ops: Sequence[Op]
    waits: Sequence[Waits]
    floors: Mapping[int, int] = field(default_factory=dict)


def roles(programs: Sequence[Program], network: Network) -> list[Role]:
    """Every class with its stage's program."""
    return [
        Role(number, programs[stage].ops, programs[stage].waits)
        for number, stage in enumerate(network.stages)
    ]


def perform(cast: Sequence[Role], costs: ComputeCosts, network: Network) -> list[Performance]:
    """When each op of each role starts and ends, in ticks; the roles meet in their collectives."""
    streams = any(can_overlap(ops) for ops in {id(role.ops): role.ops for role in cast}.values())
    env = simpy.Environment()
    stage = _Stage(env, network, Traffic(env, network) if streams else None)
    durations = durations_of(cast, costs, network)
    actors = [_Actor(stage, role, own) for role, own in zip(cast, durations, strict=True)]
    for actor in actors:
        for indices in actor.streams():
            env.process(actor.stream(indices))
    env.run()
    assert all(min(actor.end, default=0) >= 0 for actor in actors), "a stream never came to its end"
    return [(actor.start, actor.end) for actor in actors]


def durations_of(
    cast: Sequence[Role], costs: ComputeCosts, network: Network
) -> list[tuple[int, ...]]:
    """Ticks of every op for each role, as if nothing else were under way.

    What an overlapped collective takes from its device's compute is charged to the next compute op,
    the one issued beside it. It is a share of the collective's time alone: one that others slow
    moves no more bytes through the device's memory than it would alone. Messages between stages
    take nothing, and neither slow collectives nor are slowed.
    """
    computed: dict[int, list[int]] = {}
    result = []
    for role in cast:
        if id(role.ops) not in computed:
            computed[id(role.ops)] = [_compute_ticks(op, costs) for op in role.ops]
        ticks = [
            network.ticks(op)[role.number] if op.communicates else own
            for op, own in zip(role.ops, computed[id(role.ops)], strict=True)
        ]
        if costs.host_s:
            ticks = hosted(role.ops, ticks, to_ticks(costs.host_s))
        if network.fabric.compute_share:
            ticks = charged(role.ops, role.waits, ticks, network.fabric.compute_share, round)
        result.append(tuple(ticks))
    return result


def _compute_ticks(op: Op, costs: ComputeCosts) -> int:
    """A fence takes no time, and that of communication is the network's."""
    return 0 if op.communicates or op.kind == FENCE else to_ticks(costs.seconds(op))


def charged(
    ops: Sequence[Op],
    waits: Sequence[Waits],
    alone: Sequence[Ticks],
    share: float,
    rounded: Callable[[Any], Ticks],
) -> list[Ticks]:
    """Ticks of ops (numbers, or arrays with one for each of many plans) with what overlapped
    collectives take from compute.

    A collective that the next compute op itself waits for runs beside nothing: it costs none.
    """
    owed: list[int] = []
    result = []
    for index, op in enumerate(ops):
        ticks = alone[index]
        if op.stream != COMPUTE and op.is_collective:
            owed.append(index)
        if op.stream == COMPUTE and not op.is_collective:
            reached = {ops[awaited].stream: awaited for awaited in waits[index]}
            for i in owed:
                if i > reached.get(ops[i].stream, -1):
                    ticks = ticks + rounded(share * alone[i])
            owed.clear()
        result.append(ticks)
    return result


class _Stage:
    """What all actors share: the clock, and the meetings that some are already at."""

    def __init__(self, env: simpy.Environment, network: Network, traffic: Traffic | None) -> None:
        self.env = env
        self.network = network
        self.traffic = traffic
        self.open: dict[Meeting, tuple[simpy.Event, int]] = {}
        self.over: dict[Meeting, simpy.Event] = {}

    def meeting(self, op: Op, actor: int) -> Meeting:
        """Which meeting this is: of those with the same op, or messages of the same tag."""
        name = op.attributes["tag"] if op.is_message else op.name
        return name, op.group, self.network.meetings[op.group].meeting[actor]

    def arrive(self, op: Op, actor: int, takes_time: bool) -> simpy.Event | None:
        """Come to a collective: None for the last to come, else the event that it begins."""
        meeting = self.meeting(op, actor)
        meetings = self.network.meetings[op.group]
        event, missing = self.open.pop(meeting, (None, meetings.sizes[meeting[2]]))
        if missing == 1:
            if self.traffic is not None and takes_time and op.is_collective:
                self.over[meeting] = self.traffic.begin(op, meetings.members[meeting[2]])
            if event is not None:
                event.succeed()
            return None
        event = event or self.env.event()
        self.open[meeting] = (event, missing - 1)
        return event

    def end(self, op: Op, actor: int) -> simpy.Event | None:
        """The end of a collective that has begun, or None where its duration is known."""
        return self.over.get(self.meeting(op, actor)) if op.is_collective else None

    def meets(self, op: Op, actor: int) -> bool:
        """Whether an op concerns another class, or another stream's collectives."""
        if not op.communicates:
            return False
        meetings = self.network.meetings[op.group]
        shared = self.traffic is not None and op.is_collective
        return shared or meetings.sizes[meetings.meeting[actor]] > 1


class _Actor:
    """One rank class: its streams tell each other when awaited ops are done."""

    def __init__(self, stage: _Stage, role: Role, durations: Sequence[int]) -> None:
        self.stage = stage
        self.role = role
        self.durations = durations
        self.start = [-1] * len(role.ops)
        self.end = [-1] * len(role.ops)
        self.done: set[int] = set()
        self.heralds: dict[int, simpy.Event] = {}
        self.awaited = {awaited for wait in role.waits for awaited in wait}

    def streams(self) -> list[list[int]]:
        """The ops of each stream, by their places."""
        streams: dict[str, list[int]] = {}
        for index, op in enumerate(self.role.ops):
            streams.setdefault(op.stream, []).append(index)
        return list(streams.values())

    def stream(self, indices: Sequence[int]) -> Life:
        """The life of one stream."""
        env, stage, role = self.stage.env, self.stage, self.role
        clock = 0
        for index in indices:
            op = role.ops[index]
            clock = max(clock, role.floors.get(index, 0))
            meets = stage.meets(op, role.number)
            if meets or role.waits[index]:
                if clock > env.now:
                    yield env.timeout(clock - int(env.now))
                yield from self._await(role.waits[index])
                takes_time = self.durations[index] > 0
                if meets and (begin := stage.arrive(op, role.number, takes_time)) is not None:
                    yield begin
                clock = int(env.now)
            self.start[index] = clock
            if meets and (over := stage.end(op, role.number)) is not None:
                yield over
                clock = int(env.now)
            else:
                clock += self.durations[index]
            self.end[index] = clock
            if index in self.awaited:
                yield env.timeout(clock - int(env.now))
                self.done.add(index)
                if index in self.heralds:
                    self.heralds.pop(index).succeed()

    def _await(self, ops: Waits) -> Life:
        for op in ops:
            if op not in self.done:
                if op not in self.heralds:
                    self.heralds[op] = self.stage.env.event()
                yield self.heralds[op]
