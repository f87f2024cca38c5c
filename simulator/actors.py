"""The rank classes at work: one generator per class and stream walks its ops in issue order.

An op starts when the op before it on its stream and the ops it waits for on other streams are done;
a collective moreover when every class of its group has come to it. A stream keeps its own clock and
runs ahead of the simulation's: it stops only for what nobody knows yet, the end of an op that has
not begun, or a member of its group that has not come. Where collectives of several streams may be
in flight at once, `Traffic` plays them in SimPy's time, and a stream stops until its own has
landed; else they last as long as alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import simpy

from simulator.network import Network
from simulator.traffic import Traffic
from workload.dataflow import Waits
from workload.op import Op

Waiting = list["Life"]
Life = Generator[Waiting, None, None]
Performance = tuple[list[int], list[int]]  # starts and ends of a role's ops
UNKNOWN = -1


@dataclass(frozen=True)
class Role:
    """What one rank class performs: ops with their waits. `floors` has the ticks before which some
    of them, by their places, cannot start."""

    number: int
    ops: Sequence[Op]
    waits: Sequence[Waits]
    floors: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Gathering:
    """Classes that come to a collective or a message: how many are missing, when the latest of the
    others came, and who waits for the rest, or for the end."""

    missing: int
    begin: int = 0
    end: int = UNKNOWN
    waiting: Waiting = field(default_factory=list)


class Stage:
    """What all actors share: the network, the collectives in flight, and the meetings that some are
    already at. With `overlaps` a rank may have several collectives in flight at once."""

    def __init__(self, network: Network, *, overlaps: bool) -> None:
        self.network = network
        self.ready: deque[Life] = deque()
        self._env = simpy.Environment()
        self._traffic = Traffic(self._env, network) if overlaps else None
        self._open: dict[tuple[object, ...], Gathering] = {}

    def performed(
        self, cast: Sequence[Role], durations: Sequence[Sequence[int]]
    ) -> list[Performance]:
        """When each op of each role starts and ends, given what each lasts alone, in ticks."""
        actors = [_Actor(self, role, own) for role, own in zip(cast, durations, strict=True)]
        for actor in actors:
            self.ready += [actor.stream(indices) for indices in actor.streams()]
        self._go_on()
        self._env.run()
        ends = [actor.end for actor in actors]
        assert all(min(end, default=0) >= 0 for end in ends), "a stream never came to its end"
        return [(actor.start, actor.end) for actor in actors]

    def gathering(self, op: Op, actor: int, clock: int, *, takes_time: bool) -> Gathering | None:
        """The meeting of an op to which a class comes now; none if nobody else is concerned.

        The last to come sends what takes time on its way.
        """
        meetings = self.network.meetings[op.group]
        number = meetings.meeting[actor]
        missing = meetings.sizes[number]
        flies = self._traffic is not None and op.is_collective
        if missing == 1 and not flies:
            return None
        name = op.attributes["tag"] if op.is_message else op.name
        key = name, op.group, number
        gathering = self._open.pop(key, None) or Gathering(missing)
        gathering.missing -= 1
        gathering.begin = max(gathering.begin, clock)
        if gathering.missing:
            self._open[key] = gathering
        elif flies and takes_time:
            self._send(op, meetings.members[number], gathering)
        else:
            self._release(gathering.waiting)
        return gathering

    def flies(self, op: Op) -> bool:
        """Whether it takes `Traffic` to tell an op's end."""
        return self._traffic is not None and op.is_collective

    def _send(self, op: Op, classes: Sequence[int], gathering: Gathering) -> None:
        assert self._traffic is not None
        begin = partial(self._traffic.begin, op, classes, partial(self._land, gathering))
        if gathering.begin == self._env.now:
            begin()
        else:
            timeout = self._env.timeout(gathering.begin - int(self._env.now))
            timeout.callbacks = [lambda _: begin()]

    def _land(self, gathering: Gathering) -> None:
        gathering.end = int(self._env.now)
        self._release(gathering.waiting)
        self._go_on()

    def _release(self, waiting: Waiting) -> None:
        self.ready += waiting
        waiting.clear()

    def _go_on(self) -> None:
        """Let all go on that can, as far as they can."""
        while self.ready:
            life = self.ready.popleft()
            waiting = next(life, None)
            if waiting is not None:
                waiting.append(life)


class _Actor:
    """One rank class: its streams tell each other when awaited ops are over."""

    def __init__(self, stage: Stage, role: Role, durations: Sequence[int]) -> None:
        self.stage = stage
        self.role = role
        self.durations = durations
        self.start = [UNKNOWN] * len(role.ops)
        self.end = [UNKNOWN] * len(role.ops)
        self.heralds: dict[int, Waiting] = {}

    def streams(self) -> list[list[int]]:
        """The ops of each stream, by their places."""
        streams: dict[str, list[int]] = {}
        for index, op in enumerate(self.role.ops):
            streams.setdefault(op.stream, []).append(index)
        return list(streams.values())

    def stream(self, indices: Sequence[int]) -> Life:
        """The life of one stream."""
        role, end, heralds = self.role, self.end, self.heralds
        ops, waits, floors, durations = role.ops, role.waits, role.floors, self.durations
        clock = 0
        for index in indices:
            for awaited in waits[index]:
                if end[awaited] < 0:
                    yield heralds.setdefault(awaited, [])
                clock = max(clock, end[awaited])
            if floors:
                clock = max(clock, floors.get(index, 0))
            self.start[index] = clock
            clock += durations[index]
            if ops[index].communicates:
                met = yield from self._meet(index, clock - durations[index])
                clock = met if met >= 0 else clock
            end[index] = clock
            if index in heralds:
                self.stage.ready += heralds.pop(index)

    def _meet(self, index: int, clock: int) -> Generator[Waiting, None, int]:
        """Come to a collective or a message: its end, unless it concerns nobody else."""
        op, stage, number = self.role.ops[index], self.stage, self.role.number
        takes_time = self.durations[index] > 0
        gathering = stage.gathering(op, number, clock, takes_time=takes_time)
        if gathering is None:
            return UNKNOWN
        if gathering.missing:
            yield gathering.waiting
        self.start[index] = gathering.begin
        if not (takes_time and stage.flies(op)):
            return gathering.begin + self.durations[index]
        if gathering.end < 0:
            yield gathering.waiting
        return gathering.end
