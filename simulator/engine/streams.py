"""The engine: when each op of each rank class starts and ends.

The recurrence. An op starts when the op before it on its stream and the ops it waits for on other
streams have ended; a collective starts when this holds on every rank class of its group. It ends
after its duration. Start times therefore follow from ends by maxima alone, and the order in which
streams are advanced does not change them.

One Python generator per rank class and stream walks the stream's ops in issue order with a clock of
its own. It is suspended only where a time is not yet known: the end of an op that has not started,
or a rank class that has not arrived at a collective. SimPy's clock carries what depends on
simulated time: where a rank may have collectives of several streams in flight at once, `Contention`
slows them while they share links, and a stream is suspended until its collective ends. Otherwise a
collective takes its isolated duration and no SimPy event is made.

Cost: linear in the number of ops of all rank classes, with one event per collective in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from simulator.engine.stream_graph import StreamGraph
from simulator.ranks.classes import RankClasses
from topologies.records import record
from workload.op import Op
from workload.sizes.arrays import Ticks

if TYPE_CHECKING:
    import simpy

Waiters = list["StreamRun"]
StreamRun = Generator[Waiters, None, None]
OpTicks = tuple[list[int], list[int]]  # starts and ends of a task's ops
UNKNOWN = -1


@record(slots=False)
class RankTask:
    """What one rank class executes: the ops of a stream graph.

    `number` is the rank class. `floors` has for each op the ticks before which it cannot start,
    where there are such; `carry_in`, by stream, the ticks that collectives in flight at the begin
    take.
    """

    number: int
    graph: StreamGraph
    floors: Ticks | None = None
    carry_in: Mapping[str, int] = field(default_factory=dict)

    def op(self, index: int) -> Op:
        """One of the ops of its graph."""
        return self.graph.op(index)


@dataclass(slots=True)
class Rendezvous:
    """Rank classes that arrive at one collective or message.

    `missing` of them have not arrived; `begin` is the latest arrival. With `is_contended` the `end`
    is set by `Contention`; the streams in `waiting` are resumed once all have arrived, or once it
    has ended.
    """

    missing: int
    begin: int = 0
    is_contended: bool = False
    end: int = UNKNOWN
    waiting: Waiters = field(default_factory=list)


class Engine:
    """Executes the tasks of all rank classes: open rendezvous, and collectives in flight.

    With `overlaps` a rank may have several collectives in flight at once.
    """

    def __init__(self, network: RankClasses, *, overlaps: bool) -> None:
        import simpy  # here, since the compiled engine needs neither of these

        from simulator.engine.contention import Contention

        self.network = network
        self.ready: deque[StreamRun] = deque()
        self._env = simpy.Environment()
        self._contention = Contention(self._env, network, self._end_transfer) if overlaps else None
        self._open: dict[tuple[object, ...], Rendezvous] = {}

    def run(self, tasks: Sequence[RankTask], durations: Sequence[Sequence[int]]) -> list[OpTicks]:
        """When each op of each task starts and ends, given isolated durations, in ticks."""
        runs = [_RankRun(self, task, own) for task, own in zip(tasks, durations, strict=True)]
        for run in runs:
            self.ready += [run.stream(indices) for indices in run.task.graph.streams]
        self._advance()
        self._env.run()
        ends = [run.end for run in runs]
        assert all(min(end, default=0) >= 0 for end in ends), "a stream never came to its end"
        return [(run.start, run.end) for run in runs]

    def arrive(
        self, task: RankTask, index: int, clock: int, *, takes_time: bool
    ) -> Rendezvous | None:
        """The rendezvous of an op at which a task arrives; none if it meets no other class.

        The last class to arrive starts the transfer if it takes time.
        """
        op = task.op(index)
        groups = self.network.class_groups[op.traffic]
        group = groups.of_class[task.number]
        missing = groups.sizes[group]
        is_contended = self._contention is not None and op.is_collective
        if missing == 1:
            if not is_contended:
                return None
            rendezvous = Rendezvous(0, clock)
        else:
            key = task.graph.meeting(index), op.traffic, group
            rendezvous = self._joined(key, clock, missing)
        if not rendezvous.missing:
            rendezvous.is_contended = is_contended and takes_time
            if rendezvous.is_contended:
                self._send(op, groups.members[group], rendezvous)
            else:
                self._release(rendezvous.waiting)
        return rendezvous

    def _joined(self, key: tuple[object, ...], clock: int, missing: int) -> Rendezvous:
        rendezvous = self._open.pop(key, None) or Rendezvous(missing)
        rendezvous.missing -= 1
        rendezvous.begin = max(rendezvous.begin, clock)
        if rendezvous.missing:
            self._open[key] = rendezvous
        return rendezvous

    def _send(self, op: Op, classes: Sequence[int], rendezvous: Rendezvous) -> None:
        assert self._contention is not None
        ahead = rendezvous.begin - int(self._env.now)
        if ahead:
            timeout = self._env.timeout(ahead)
            timeout.callbacks = [partial(self._begin_transfer, op, classes, rendezvous)]
        else:
            self._contention.begin(op, classes, rendezvous)

    def _begin_transfer(
        self, op: Op, classes: Sequence[int], rendezvous: Rendezvous, _: simpy.Event
    ) -> None:
        assert self._contention is not None
        self._contention.begin(op, classes, rendezvous)

    def _end_transfer(self, rendezvous: Rendezvous) -> None:
        rendezvous.end = int(self._env.now)
        self._release(rendezvous.waiting)
        self._advance()

    def _release(self, waiting: Waiters) -> None:
        self.ready += waiting
        waiting.clear()

    def _advance(self) -> None:
        """Resume every stream that is ready, until none is."""
        while self.ready:
            stream_run = self.ready.popleft()
            waiting = next(stream_run, None)
            if waiting is not None:
                waiting.append(stream_run)


class _RankRun:
    """The streams of one rank class, which resume each other when an awaited op has ended."""

    def __init__(self, engine: Engine, task: RankTask, durations: Sequence[int]) -> None:
        self.engine = engine
        self.task = task
        self.durations = durations
        self.start = [UNKNOWN] * len(durations)
        self.end = [UNKNOWN] * len(durations)
        self.waiters: dict[int, Waiters] = {}

    def stream(self, indices: Sequence[int]) -> StreamRun:
        """Walk one stream, given by the indices of its ops."""
        task, end, waiters = self.task, self.end, self.waiters
        waits, communicates = task.graph.waits, task.graph.communicates
        floors, durations = task.floors, self.durations
        clock = 0
        for index in indices:
            for awaited in waits[index]:
                if end[awaited] < 0:
                    yield waiters.setdefault(awaited, [])
                clock = max(clock, end[awaited])
            if floors is not None:
                clock = max(clock, int(floors[index]))
            self.start[index] = clock
            begin, clock = clock, clock + durations[index]
            if communicates[index]:
                rendezvous = self._arrive(index, begin)
                if rendezvous is not None:
                    if rendezvous.missing:
                        yield rendezvous.waiting
                    self.start[index] = rendezvous.begin
                    clock = rendezvous.begin + durations[index]
                    if rendezvous.is_contended:
                        if rendezvous.end < 0:
                            yield rendezvous.waiting
                        clock = rendezvous.end
            end[index] = clock
            if index in waiters:
                self.engine.ready += waiters.pop(index)

    def _arrive(self, index: int, clock: int) -> Rendezvous | None:
        """Arrive at a collective or message, unless it meets no other rank class."""
        takes_time = self.durations[index] > 0
        return self.engine.arrive(self.task, index, clock, takes_time=takes_time)
