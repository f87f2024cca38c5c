"""The rank classes at work: one generator per class and stream walks its ops in issue order.

An op starts when the op before it on its stream and the ops it waits for on other streams are done;
a collective moreover when every class of its group has come to it. A stream keeps its own clock and
runs ahead of the simulation's: it stops only for what nobody knows yet, the end of an op that has
not begun, or a member of its group that has not come. Where collectives of several streams may be
in flight at once, `Contention` plays them in SimPy's time, and a stream stops until its own has
landed; else they last as long as alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import simpy

from simulator.engine.contention import Contention
from simulator.engine.stream_graph import StreamGraph
from simulator.ranks.classes import RankClasses
from workload.op import Op

Waiters = list["StreamRun"]
StreamRun = Generator[Waiters, None, None]
OpTicks = tuple[list[int], list[int]]  # starts and ends of a role's ops
UNKNOWN = -1


@dataclass(frozen=True)
class RankTask:
    """What one rank class performs: the ops of a score, in their sizes. `floors` has the ticks
    before which some of them, by their places, cannot start, `due` by stream how long collectives
    take that are under way at the begin."""

    number: int
    score: StreamGraph
    ops: Sequence[Op]
    floors: Mapping[int, int] = field(default_factory=dict)
    due: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Rendezvous:
    """Classes that come to a collective or a message: how many are missing, when the latest of the
    others came, whether `Contention` tells the end, and who waits for the rest, or for that."""

    missing: int
    begin: int = 0
    flies: bool = False
    end: int = UNKNOWN
    waiting: Waiters = field(default_factory=list)


class Engine:
    """What all actors share: the network, the collectives in flight, and the meetings that some are
    already at. With `overlaps` a rank may have several collectives in flight at once."""

    def __init__(self, network: RankClasses, *, overlaps: bool) -> None:
        self.network = network
        self.ready: deque[StreamRun] = deque()
        self._env = simpy.Environment()
        self._traffic = Contention(self._env, network, self._land) if overlaps else None
        self._open: dict[tuple[object, ...], Rendezvous] = {}

    def performed(
        self, cast: Sequence[RankTask], durations: Sequence[Sequence[int]]
    ) -> list[OpTicks]:
        """When each op of each role starts and ends, given what each lasts alone, in ticks."""
        actors = [_RankRun(self, role, own) for role, own in zip(cast, durations, strict=True)]
        for actor in actors:
            self.ready += [actor.stream(indices) for indices in actor.role.score.streams]
        self._go_on()
        self._env.run()
        ends = [actor.end for actor in actors]
        assert all(min(end, default=0) >= 0 for end in ends), "a stream never came to its end"
        return [(actor.start, actor.end) for actor in actors]

    def gathering(self, op: Op, actor: int, clock: int, *, takes_time: bool) -> Rendezvous | None:
        """The meeting of an op to which a class comes now; none if nobody else is concerned.

        The last to come sends what takes time on its way.
        """
        meetings = self.network.meetings[op.group]
        number = meetings.meeting[actor]
        missing = meetings.sizes[number]
        flies = self._traffic is not None and op.is_collective
        if missing == 1:
            if not flies:
                return None
            gathering = Rendezvous(0, clock)
        else:
            gathering = self._gathered(op, number, clock, missing)
        if not gathering.missing:
            gathering.flies = flies and takes_time
            if gathering.flies:
                self._send(op, meetings.members[number], gathering)
            else:
                self._release(gathering.waiting)
        return gathering

    def _gathered(self, op: Op, number: int, clock: int, missing: int) -> Rendezvous:
        key = op.attributes["tag"] if op.is_message else op.name, op.group, number
        gathering = self._open.pop(key, None) or Rendezvous(missing)
        gathering.missing -= 1
        gathering.begin = max(gathering.begin, clock)
        if gathering.missing:
            self._open[key] = gathering
        return gathering

    def _send(self, op: Op, classes: Sequence[int], gathering: Rendezvous) -> None:
        assert self._traffic is not None
        ahead = gathering.begin - int(self._env.now)
        if ahead:
            timeout = self._env.timeout(ahead)
            timeout.callbacks = [partial(self._take_off, op, classes, gathering)]
        else:
            self._traffic.begin(op, classes, gathering)

    def _take_off(
        self, op: Op, classes: Sequence[int], gathering: Rendezvous, _: simpy.Event
    ) -> None:
        assert self._traffic is not None
        self._traffic.begin(op, classes, gathering)

    def _land(self, gathering: Rendezvous) -> None:
        gathering.end = int(self._env.now)
        self._release(gathering.waiting)
        self._go_on()

    def _release(self, waiting: Waiters) -> None:
        self.ready += waiting
        waiting.clear()

    def _go_on(self) -> None:
        """Let all go on that can, as far as they can."""
        while self.ready:
            life = self.ready.popleft()
            waiting = next(life, None)
            if waiting is not None:
                waiting.append(life)


class _RankRun:
    """One rank class: its streams tell each other when awaited ops are over."""

    def __init__(self, stage: Engine, role: RankTask, durations: Sequence[int]) -> None:
        self.stage = stage
        self.role = role
        self.durations = durations
        self.start = [UNKNOWN] * len(role.ops)
        self.end = [UNKNOWN] * len(role.ops)
        self.heralds: dict[int, Waiters] = {}

    def stream(self, indices: Sequence[int]) -> StreamRun:
        """The life of one stream."""
        role, end, heralds = self.role, self.end, self.heralds
        waits, communicates = role.score.waits, role.score.communicates
        floors, durations = role.floors, self.durations
        clock = 0
        for index in indices:
            for awaited in waits[index]:
                if end[awaited] < 0:
                    yield heralds.setdefault(awaited, [])
                clock = max(clock, end[awaited])
            if floors:
                clock = max(clock, floors.get(index, 0))
            self.start[index] = clock
            begin, clock = clock, clock + durations[index]
            if communicates[index]:
                gathering = self._come(index, begin)
                if gathering is not None:
                    if gathering.missing:
                        yield gathering.waiting
                    self.start[index] = gathering.begin
                    clock = gathering.begin + durations[index]
                    if gathering.flies:
                        if gathering.end < 0:
                            yield gathering.waiting
                        clock = gathering.end
            end[index] = clock
            if index in heralds:
                self.stage.ready += heralds.pop(index)

    def _come(self, index: int, clock: int) -> Rendezvous | None:
        """Come to a collective or a message, unless it concerns nobody else."""
        takes_time = self.durations[index] > 0
        return self.stage.gathering(
            self.role.ops[index], self.role.number, clock, takes_time=takes_time
        )
