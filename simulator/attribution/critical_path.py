"""The critical path: the chain of ops that a step could not be shorter than, walked from its end.

Every op starts when the latest of those it follows ends: the one before it on its stream, those
that it waits for, and in a collective the same of every member. So from the op that ends last one
can walk back to the step's begin, from each op to one that ended as it started, and the ops on the
way fill the whole step without a gap. Where several ended at that moment, one of the same rank is
taken, and of those the first; another walk would be as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import Prices, host_waits, rank_tasks, simulate_tasks
from simulator.engine.streams import OpTicks
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from workload.kinds import BY_THEMSELVES, KINDS
from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH, STEP, Op
from workload.program import Program

OpPlace = tuple[int, int]  # a rank class, and an op of its program
RendezvousKey = tuple[str, tuple[str, ...], int]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True)
class SimulatedStep:
    """A step simulated op by op: every class's starts and ends, and who meets whom."""

    programs: Sequence[Program]
    network: RankClasses
    times: Sequence[OpTicks]
    hosts: Sequence[Sequence[int]]

    def path(self) -> tuple[PathPiece, ...]:
        """The critical path, from the step's begin to its end, without ops that take no time."""
        return tuple(reversed([piece for piece in self._backwards() if piece.ticks]))

    def _backwards(self) -> Iterator[PathPiece]:
        place: OpPlace | None = self._last()
        while place is not None:
            number, index = place
            starts, ends = self.times[number]
            op = self._program(number).ops[index]
            host = self.hosts[number][index]
            yield PathPiece(self.network.ranks[number], op, starts[index], ends[index], host)
            place = self._before(place) if starts[index] else None

    def _last(self) -> OpPlace:
        over = [(max(ends), number) for number, (_, ends) in enumerate(self.times)]
        end, number = max(over, key=lambda each: (each[0], -each[1]))
        return number, self.times[number][1].index(end)

    def _before(self, place: OpPlace) -> OpPlace:
        """What the op waited for: of the ops that ended as it started, one of its own rank."""
        start = self.times[place[0]][0][place[1]]
        for number, index in (place, *self._others(place)):
            for earlier in self._followed(number, index):
                if self.times[number][1][earlier] == start:
                    return number, earlier
        raise AssertionError("an op started when nothing ended")

    def _followed(self, number: int, index: int) -> Iterator[int]:
        yield from self._previous[self.network.stages[number]].get(index, ())
        yield from self._program(number).waits[index]

    def _others(self, place: OpPlace) -> list[OpPlace]:
        of_class = self._meeting(*place)
        return [] if of_class is None else [p for p in self._members[of_class] if p != place]

    def _program(self, number: int) -> Program:
        return self.programs[self.network.stages[number]]

    def _meeting(self, number: int, index: int) -> RendezvousKey | None:
        op = self._program(number).ops[index]
        if not op.communicates:
            return None
        name = op.attributes["tag"] if op.is_message else op.name
        return name, op.traffic, self.network.class_groups[op.traffic].of_class[number]

    @cached_property
    def _members(self) -> Mapping[RendezvousKey, list[OpPlace]]:
        found: dict[RendezvousKey, list[OpPlace]] = {}
        for number in range(len(self.times)):
            for index in range(len(self._program(number).ops)):
                if (of_class := self._meeting(number, index)) is not None:
                    found.setdefault(of_class, []).append((number, index))
        return found

    @cached_property
    def _previous(self) -> list[dict[int, tuple[int, ...]]]:
        """For each program the op before each one on its stream."""
        result = []
        for program in self.programs:
            last: dict[str, int] = {}
            before: dict[int, tuple[int, ...]] = {}
            for index, op in enumerate(program.ops):
                if op.stream in last:
                    before[index] = (last[op.stream],)
                last[op.stream] = index
            result.append(before)
        return result


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
    return SimulatedStep(programs, network, times, hosts)


def ticks_by_cause(path: Sequence[PathPiece]) -> dict[Cause, int]:
    """Where the time of a path goes; the ticks sum to the step's."""
    parts: dict[Cause, int] = {}
    for piece in path:
        cause = cause_of(piece.op)
        parts[cause] = parts.get(cause, 0) + piece.ticks - piece.host_ticks
        if piece.host_ticks:
            parts[OF_HOST] = parts.get(OF_HOST, 0) + piece.host_ticks
    return parts
