"""The critical path: the chain of ops that a step could not be shorter than, walked from its end.

Every op starts when the latest of those it follows ends: the one before it on its stream, those
that it waits for, and in a collective the same of every member. So from the op that ends last one
can walk back to the step's begin, from each op to one that ended as it started, and the ops on the
way fill the whole step without a gap. Where several ended at that moment, one of the same rank is
taken, and of those the first; another walk would be as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import Prices, host_waits, rank_tasks, simulate_tasks
from simulator.engine.stream_graph import StreamGraph
from simulator.engine.streams import OpTicks, RankTask
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from topologies.records import record
from workload.kinds import BY_THEMSELVES, KINDS
from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH, NONE, STEP, Op
from workload.program import Program
from workload.sizes.arrays import Ticks

OpPlace = tuple[int, int]  # a rank class, and an op of its program
RendezvousKey = tuple[Hashable, tuple[str, ...], int]


@record
class PathPiece:
    """One op of the path, on the rank where it was met, in ticks; in `host_ticks` of them the
    device waits for the host to issue kernels."""

    rank: int
    op: Op
    start_ticks: int
    end_ticks: int
    host_ticks: int = 0

    @property
    def ticks(self) -> int:
        """How long the op took."""
        return self.end_ticks - self.start_ticks


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """What a stretch of the step goes to: a sort of compute, or collectives over some axes."""

    axes: str
    work: str

    def __str__(self) -> str:
        return f"{self.axes} {self.work}" if self.axes else self.work


OF_HOST = Cause("", "waits for the host")


def cause_of(op: Op) -> Cause:
    """What an op's time is filed under."""
    work = KINDS[op.kind].work
    if op.communicates:
        of_experts = op.purpose in (EXPERT_DISPATCH, EXPERT_COMBINE)
        axes = "ep" if of_experts else "+".join(op.axes) or "pp"
        return Cause(axes, work.value)
    if op.block == STEP and work not in BY_THEMSELVES:
        return Cause("", "optimizer")
    return Cause("", work.value)


@record(slots=False)
class TaskWalk:
    """Tasks that were simulated together, with the starts, ends and waits for the host of their
    ops, to be walked back from any op."""

    network: RankClasses
    tasks: Sequence[RankTask]
    times: Sequence[OpTicks]
    hosts: Sequence[Sequence[int]]

    def back(self, place: OpPlace) -> Iterator[tuple[OpPlace, PathPiece]]:
        """The ops from this one back to one that started when nothing here ended: at the begin of
        all, or as soon as it was allowed to (`held`)."""
        at: OpPlace | None = place
        while at is not None:
            number, index = at
            task, (starts, ends) = self.tasks[number], self.times[number]
            rank, host = self.network.ranks[task.number], self.hosts[number][index]
            yield at, PathPiece(rank, task.op(index), starts[index], ends[index], host)
            at = self._before(at) if starts[index] else None

    def last(self) -> OpPlace:
        """The op that ends last, of the first such rank class the first."""
        over = [(max(ends), number) for number, (_, ends) in enumerate(self.times)]
        end, number = max(over, key=lambda each: (each[0], -each[1]))
        return number, self.times[number][1].index(end)

    def start(self, place: OpPlace) -> int:
        """When an op started."""
        number, index = place
        return self.times[number][0][index]

    def held(self, place: OpPlace) -> OpPlace:
        """The op that started as soon as its task's floors let it: this one, or one that it meets
        in a collective."""
        for number, index in (place, *self._others(place)):
            floors = self.tasks[number].floors
            if floors is not None and floors[index] == self.start((number, index)):
                return number, index
        raise AssertionError("an op started when nothing ended")

    def _before(self, place: OpPlace) -> OpPlace | None:
        """What the op waited for: of the ops that ended as it started, one of its own rank."""
        for number, index in (place, *self._others(place)):
            start = self.start((number, index))
            for earlier in self._followed(number, index):
                if self.times[number][1][earlier] == start:
                    return number, earlier
        return None

    def _followed(self, number: int, index: int) -> Iterator[int]:
        graph = self.tasks[number].graph
        if (previous := self._previous(graph)[index]) != NONE:
            yield previous
        yield from graph.awaited.of_one(index)

    def _others(self, place: OpPlace) -> list[OpPlace]:
        meeting = self._meeting(*place)
        return [] if meeting is None else [p for p in self._members[meeting] if p != place]

    def _meeting(self, number: int, index: int) -> RendezvousKey | None:
        task = self.tasks[number]
        if not task.graph.communicates[index]:
            return None
        axes = task.op(index).traffic
        return (
            task.graph.meeting(index),
            axes,
            self.network.class_groups[axes].of_class[task.number],
        )

    @cached_property
    def _members(self) -> Mapping[RendezvousKey, list[OpPlace]]:
        found: dict[RendezvousKey, list[OpPlace]] = {}
        for number, task in enumerate(self.tasks):
            for index in np.flatnonzero(task.graph.communicates).tolist():
                if (meeting := self._meeting(number, index)) is not None:
                    found.setdefault(meeting, []).append((number, index))
        return found

    def _previous(self, graph: StreamGraph) -> list[int]:
        """By op of a graph the one before it on its stream, NONE of the first."""
        if graph not in self._known_previous:
            previous = np.full(len(graph.places), NONE, dtype=np.int64)
            for stream in graph.streams:
                previous[stream[1:]] = stream[:-1]
            self._known_previous[graph] = previous.tolist()
        return self._known_previous[graph]

    @cached_property
    def _known_previous(self) -> dict[StreamGraph, list[int]]:
        return {}


@record(slots=False)
class SimulatedStep:
    """A step simulated op by op: every class's starts and ends, and who meets whom."""

    programs: Sequence[Program]
    network: RankClasses
    tasks: Sequence[RankTask]
    times: Sequence[OpTicks]
    hosts: Sequence[Sequence[int]]

    def path(self) -> tuple[PathPiece, ...]:
        """The critical path, from the step's begin to its end, without ops that take no time."""
        walk = TaskWalk(self.network, self.tasks, self.times, self.hosts)
        pieces = [piece for _, piece in walk.back(walk.last())]
        assert pieces[-1].start_ticks == 0, "an op started when nothing ended"
        return tuple(reversed([piece for piece in pieces if piece.ticks]))


def simulated_step(
    programs: Sequence[Program], costs: ComputeCosts, fabric: Fabric
) -> SimulatedStep:
    """Simulate a step op by op, given each pipeline stage's program."""
    return until_consistent(
        lambda contended: classes_of(programs, fabric, contended=contended),
        lambda network: _simulated(programs, costs, network),
    )


def _simulated(
    programs: Sequence[Program], costs: ComputeCosts, network: RankClasses
) -> SimulatedStep:
    tasks = rank_tasks(programs, network)
    prices = Prices(costs, network)
    times = simulate_tasks(tasks, prices)
    hosts = [host_waits(task, prices).tolist() for task in tasks]
    return SimulatedStep(programs, network, tasks, times, hosts)


def lists_of(times: Iterable[tuple[Ticks, Ticks]]) -> list[OpTicks]:
    """Starts and ends as lists, of which a walk reads a few."""
    return [(start.tolist(), end.tolist()) for start, end in times]


def ticks_by_cause(path: Iterable[PathPiece]) -> dict[Cause, int]:
    """Where the time of a path goes; the ticks sum to the step's."""
    parts: dict[Cause, int] = {}
    for piece in path:
        cause = cause_of(piece.op)
        parts[cause] = parts.get(cause, 0) + piece.ticks - piece.host_ticks
        if piece.host_ticks:
            parts[OF_HOST] = parts.get(OF_HOST, 0) + piece.host_ticks
    return parts
