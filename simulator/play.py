"""Playing a program: one SimPy process per rank class and stream walks its ops in issue order.

An op starts when the op before it on its stream and the ops it waits for on other streams are done;
a collective moreover when every class of its group has come to it. Where collectives of several
streams may be in flight at once, `Traffic` says when each is over; else they last as long as alone.
A stream keeps its own clock, which runs ahead of the simulation's through ops that concern nobody
else, and catches up with it before it waits for, meets or tells anyone: that spares most of the
events.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from simulator.costs import ComputeCosts
from simulator.network import Fabric, Flying, Ints, Network, UnlikeRanksError, network_of
from simulator.ticks import to_seconds, to_ticks
from simulator.traffic import Traffic
from workload.dataflow import Waits
from workload.op import COMPUTE, Op
from workload.program import Program
from workload.timeline import Span, Timeline

Life = Generator[simpy.Event, None, None]


@dataclass(frozen=True)
class Run:
    """When each op of each rank class started and ended, in ticks: arrays (classes, ops)."""

    program: Program
    network: Network
    start: Ints
    end: Ints

    @property
    def timeline(self) -> Timeline:
        """The spans of each class's representative rank, in issue order."""
        spans = []
        for index, rank in enumerate(self.network.ranks):
            times = zip(self.start[index].tolist(), self.end[index].tolist(), strict=True)
            for op, (start, end) in zip(self.program.ops, times, strict=True):
                spans.append(Span(rank, op, to_seconds(start), to_seconds(end)))
        return Timeline("predicted", tuple(spans))


def simulate(
    program: Program, costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> Timeline:
    """The predicted timeline of a program; `unfold` simulates every rank instead of every class."""
    return play_whole(program, costs, fabric, unfold=unfold).timeline


def play_whole(
    program: Program, costs: ComputeCosts, fabric: Fabric, *, unfold: bool = False
) -> Run:
    """Simulate one step with as many rank classes as it takes."""
    crowds: list[Flying] = []
    while True:
        network = network_of(program, fabric, unfold=unfold, crowds=crowds)
        try:
            return play(program, costs, network)
        except UnlikeRanksError as error:
            crowds.append(error.flying)


def can_overlap(ops: Sequence[Op]) -> bool:
    """Whether a rank may have several collectives in flight at once."""
    return len({op.stream for op in ops if op.is_collective}) > 1


def play(
    program: Program, costs: ComputeCosts, network: Network, ops: Sequence[Op] | None = None
) -> Run:
    """Simulate one step. `ops` may replace the program's ops by ones of other sizes."""
    timed = program.ops if ops is None else ops
    stage = _Stage(
        simpy.Environment(),
        network,
        timed,
        program.waits,
        _durations(timed, program.waits, costs, network),
    )
    streams: dict[str, list[int]] = {}
    for index, op in enumerate(timed):
        streams.setdefault(op.stream, []).append(index)
    actors = [_Actor(stage, number) for number in range(len(network.ranks))]
    for actor in actors:
        for indices in streams.values():
            stage.env.process(actor.stream(indices))
    stage.env.run()
    start = np.array([actor.start for actor in actors], dtype=np.int64)
    end = np.array([actor.end for actor in actors], dtype=np.int64)
    assert (end >= 0).all(), "a stream never came to its end"
    return Run(program, network, start, end)


def _durations(
    ops: Sequence[Op], waits: Sequence[Waits], costs: ComputeCosts, network: Network
) -> list[list[int]]:
    """Ticks of every op for each class.

    What an overlapped collective takes from its device's compute is charged to the next compute op,
    the one issued beside it. It is a share of the collective's time alone: one that others slow
    moves no more bytes through the device's memory than it would alone.
    """
    everyone = range(len(network.ranks))
    known: dict[tuple[object, ...], list[int]] = {}
    columns = []
    for op in ops:
        if not op.is_collective:
            columns.append([to_ticks(costs.seconds(op))] * len(everyone))
            continue
        key = (op.kind, op.axes, op.nbytes)
        if key not in known:
            known[key] = network.ticks(op)
        columns.append(known[key])
    share = network.fabric.compute_share
    if share:
        columns = _charged(ops, waits, columns, share)
    return [[column[number] for column in columns] for number in everyone]


def _charged(
    ops: Sequence[Op], waits: Sequence[Waits], columns: list[list[int]], share: float
) -> list[list[int]]:
    """A collective that the next compute op itself waits for runs beside nothing: it costs none."""
    owed: list[int] = []
    charged = []
    for index, (op, column) in enumerate(zip(ops, columns, strict=True)):
        if op.stream != COMPUTE and op.is_collective:
            owed.append(index)
        if op.stream != COMPUTE or op.is_collective:
            charged.append(column)
            continue
        reached = {ops[awaited].stream: awaited for awaited in waits[index]}
        beside = [columns[i] for i in owed if i > reached.get(ops[i].stream, -1)]
        rows = zip(column, *beside, strict=True)
        charged.append([own + sum(round(share * ticks) for ticks in debts) for own, *debts in rows])
        owed.clear()
    return charged


class _Stage:
    """What all actors share: the clock, the ops, and the meetings that some are already at."""

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        ops: Sequence[Op],
        waits: Sequence[Waits],
        durations: list[list[int]],
    ) -> None:
        self.env = env
        self.network = network
        self.ops = ops
        self.waits = waits
        self.durations = durations
        self.awaited = {awaited for wait in waits for awaited in wait}
        self.open: dict[tuple[int, int], tuple[simpy.Event, int]] = {}
        self.traffic = Traffic(env, network) if can_overlap(ops) else None
        self.over: dict[tuple[int, int], simpy.Event] = {}

    def arrive(self, op: int, actor: int) -> simpy.Event | None:
        """Come to a collective: None for the last to come, else the event that it begins."""
        meetings = self.network.meetings[self.ops[op].axes]
        meeting = meetings.meeting[actor]
        event, missing = self.open.pop((op, meeting), (None, meetings.sizes[meeting]))
        if missing == 1:
            if self.traffic is not None and self.durations[actor][op]:
                classes = meetings.members[meeting]
                self.over[op, meeting] = self.traffic.begin(self.ops[op], classes)
            if event is not None:
                event.succeed()
            return None
        event = event or self.env.event()
        self.open[op, meeting] = (event, missing - 1)
        return event

    def end(self, op: int, actor: int) -> simpy.Event | None:
        """The end of a collective that has begun, or None where its duration is known."""
        if not self.ops[op].is_collective:
            return None
        return self.over.get((op, self.network.meetings[self.ops[op].axes].meeting[actor]))

    def meets(self, op: int, actor: int) -> bool:
        """Whether an op concerns another class, or another stream's collectives."""
        if not self.ops[op].is_collective:
            return False
        meetings = self.network.meetings[self.ops[op].axes]
        return self.traffic is not None or meetings.sizes[meetings.meeting[actor]] > 1


class _Actor:
    """One rank class: its streams tell each other when awaited ops are done."""

    def __init__(self, stage: _Stage, number: int) -> None:
        self.stage = stage
        self.number = number
        self.start = [-1] * len(stage.ops)
        self.end = [-1] * len(stage.ops)
        self.done: set[int] = set()
        self.heralds: dict[int, simpy.Event] = {}

    def stream(self, indices: Sequence[int]) -> Life:
        """The life of one stream."""
        env, stage, durations = self.stage.env, self.stage, self.stage.durations[self.number]
        clock = 0
        for op in indices:
            meets = stage.meets(op, self.number)
            if meets or stage.waits[op]:
                if clock > env.now:
                    yield env.timeout(clock - int(env.now))
                yield from self._await(stage.waits[op])
                if meets and (begin := stage.arrive(op, self.number)) is not None:
                    yield begin
                clock = int(env.now)
            self.start[op] = clock
            if meets and (over := stage.end(op, self.number)) is not None:
                yield over
                clock = int(env.now)
            else:
                clock += durations[op]
            self.end[op] = clock
            if op in stage.awaited:
                yield env.timeout(clock - int(env.now))
                self.done.add(op)
                if op in self.heralds:
                    self.heralds.pop(op).succeed()

    def _await(self, ops: Waits) -> Life:
        for op in ops:
            if op not in self.done:
                if op not in self.heralds:
                    self.heralds[op] = self.stage.env.event()
                yield self.heralds[op]
