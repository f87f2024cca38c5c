"""Every rank's clock: the ops of a stage executed on all of its ranks at once.

The recurrence is the engine's (`simulator/engine/streams.py`), on arrays: a stream's clock has one
entry for each sample and rank, a wait is a maximum of two arrays, a collective a maximum over the
groups, and then every op adds its duration. Durations are those that the simulation of the rank
classes found, contention and interference included; compute is multiplied by the factors of noise.

Exact without noise: then the clocks of a class's ranks are the class's, by induction over the ops.
Clocks are floating-point numbers of ticks, exact up to 2**53 ticks, which are 2.5 hours.

Not modelled: that noise moves collectives in time, so that others contend with each other and with
compute than did without it.

Cost: some ten numpy calls for a collective and two for other ops; 1 ns for each op, rank and
sample, once there are thousands of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.engine.interference import FENCE
from simulator.engine.stream_graph import StreamGraph
from simulator.noise.noise import Factors, StageDraw
from simulator.noise.stage_ranks import Clocks, StageRanks
from topologies.records import record
from workload.op import ACROSS_STAGES, COMPUTE, Op
from workload.sizes.arrays import Ticks

MOST_EXACT_TICKS = 2**53
PIPE = "pp"  # what waiting for other stages counts as


class Wait(NamedTuple):
    """An op awaited: how many ops before the one that waits, and what waiting for it counts as."""

    distance: int
    key: str


class Floor(NamedTuple):
    """Times before which an op does not start, and what waiting for them counts as."""

    clocks: Clocks
    key: str


@record
class OpStep:
    """One op as ranks execute it.

    `ticks` is its duration, the same on all ranks or of each class. With `reach` ops that come so
    much later may still wait for it. A collective has its `axes`; `is_across`: it meets other
    stages too, by the name `meeting`. The time in which the compute stream waits at it counts as
    `key`, elsewhere as nothing: then that is empty.
    """

    stream: str
    waits: tuple[Wait, ...]
    ticks: float | Clocks
    is_noisy: bool
    reach: int
    axes: tuple[str, ...] = ()
    meeting: str = ""
    key: str = ""

    @property
    def is_across(self) -> bool:
        """Whether the op meets ranks of other stages."""
        return bool(self.meeting)


def op_steps(graph: StreamGraph, ticks: Ticks, farthest: int | None = None) -> list[OpStep]:
    """The ops of a graph, with durations (classes, ops); waits for what is further back than
    `farthest` ops are left out."""
    waits = [
        tuple(Wait(at - awaited, graph.ops[awaited].time_key) for awaited in own)
        for at, own in enumerate(graph.waits)
    ]
    if farthest is not None:
        waits = [tuple(wait for wait in own if wait.distance <= farthest) for own in waits]
    reach = [0] * len(waits)
    for at, own in enumerate(waits):
        for wait in own:
            reach[at - wait.distance] = max(reach[at - wait.distance], wait.distance)
    alike = (ticks == ticks[:1]).all(axis=0)
    each = ticks.astype(np.float64)
    lasts = [float(each[0, at]) if alike[at] else each[:, at] for at in range(len(waits))]
    return [
        _step(op, graph, at, waits[at], lasts[at], reach[at]) for at, op in enumerate(graph.ops)
    ]


def _step(
    op: Op,
    graph: StreamGraph,
    at: int,
    waits: tuple[Wait, ...],
    ticks: float | Clocks,
    reach: int,
) -> OpStep:
    is_noisy = not op.communicates and op.stream == COMPUTE and op.kind != FENCE
    step = OpStep(op.stream, waits, ticks, is_noisy, reach)
    if not op.is_collective:
        return step
    is_across = not ACROSS_STAGES.isdisjoint(op.axes)
    return replace(
        step,
        axes=op.axes,
        meeting=str(graph.meeting(at)) if is_across else "",
        key=PIPE if is_across else op.time_key,
    )


class Waited:
    """How long the compute streams of some ranks have waited, by what for: ticks by sample, summed
    over the ranks."""

    def __init__(self) -> None:
        self.ticks: dict[str, Clocks] = defaultdict(lambda: np.zeros(1))

    def add(self, key: str, before: Clocks, after: Clocks, times: int = 1) -> None:
        """Count a wait between two arrays of clocks, each of the second for so many ranks."""
        sums = times * after.reshape(len(after), -1).sum(axis=1) - before.sum(axis=1)
        self.ticks[key] = self.ticks[key] + sums


NOTHING: Mapping[int, Sequence[Floor]] = {}
Arrival = tuple[str, tuple[str, ...], Clocks]  # at a collective across stages: a group's latest


class RankClocks:
    """The clocks of a stage's ranks, for some samples: of each stream, and the ends of those ops
    that others may still wait for.

    `waited` counts what the compute stream waits for, if that is given.
    """

    def __init__(self, ranks: StageRanks, begin: Clocks, waited: Waited | None = None) -> None:
        self.ranks = ranks
        self.begin = begin
        self.waited = waited
        self.ends: dict[int, Clocks] = {}
        self._streams: dict[str, Clocks] = {}
        self._kept: set[str] = set()  # streams whose clock is the end of an op that is kept too
        self._expiring: dict[int, list[int]] = defaultdict(list)
        self._product = np.empty_like(begin)
        self._place = 0

    def stream(self, name: str) -> Clocks:
        """When a stream is through with its ops so far."""
        return self._streams.get(name, self.begin)

    @property
    def last(self) -> Clocks:
        """When the last stream of the last rank is through, (samples,)."""
        every = [self.begin, *self._streams.values()]
        return np.asarray(np.max([clock.max(axis=1) for clock in every], axis=0))

    def execute(
        self,
        steps: Sequence[OpStep],
        draw: StageDraw,
        floors: Mapping[int, Sequence[Floor]] = NOTHING,
    ) -> Generator[Arrival, Clocks, None]:
        """Execute ops behind those so far. Yields each arrival at a collective across stages, and
        is to be sent the latest arrival of all stages; `floors` by the places of ops in `steps`."""
        for number, step in enumerate(steps):
            for wait in step.waits:
                self._wait(step.stream, self.ends[self._place - wait.distance], wait.key)
            for floor in floors.get(number, ()):
                self._wait(step.stream, floor.clocks, floor.key)
            if step.axes:
                latest = self.ranks.maxima(self.stream(step.stream), step.axes)
                if step.is_across:
                    latest = yield step.meeting, step.axes, latest
                self._meet(step, latest)
            else:
                self._last(step, number, draw)
            self._keep(step)

    def _owned(self, stream: str) -> Clocks:
        """A stream's clock that may be written to: nothing else has this array."""
        if stream not in self._streams or stream in self._kept:
            self._streams[stream] = self.stream(stream).copy()
            self._kept.discard(stream)
        return self._streams[stream]

    def _wait(self, stream: str, until: Clocks, key: str) -> None:
        before = self.stream(stream)
        if self.waited is not None and stream == COMPUTE:
            after = np.maximum(before, until)
            self.waited.add(key, before, after)
            self._replace(stream, after)
        else:
            np.maximum(before, until, out=self._owned(stream))

    def _replace(self, stream: str, clock: Clocks) -> None:
        self._streams[stream] = clock
        self._kept.discard(stream)

    def _meet(self, step: OpStep, latest: Clocks) -> None:
        """All ranks of a group go on from the latest arrival, and end so much later."""
        before = self.stream(step.stream)
        if self.waited is not None and step.stream == COMPUTE:
            times = before.shape[1] * len(before) // latest.size
            self.waited.add(step.key, before, latest, times)
        clock = np.empty_like(self.begin)
        if isinstance(step.ticks, float):
            self.ranks.spread(latest + step.ticks, step.axes, clock)
        else:
            self.ranks.spread(latest, step.axes, clock)
            clock += step.ticks[self.ranks.class_of]
        self._replace(step.stream, clock)

    def _last(self, step: OpStep, number: int, draw: StageDraw) -> None:
        """Add the duration of an op that meets nobody."""
        ticks = step.ticks
        if isinstance(ticks, np.ndarray):
            ticks = ticks[self.ranks.class_of]
        elif ticks == 0:
            return
        clock = self._owned(step.stream)
        factors = _factors(draw, number, self._product) if step.is_noisy else None
        if factors is None:
            clock += ticks
        else:
            np.multiply(factors, ticks, out=self._product)
            clock += self._product

    def _keep(self, step: OpStep) -> None:
        if step.reach:
            self.ends[self._place] = self._streams.setdefault(step.stream, self.stream(step.stream))
            self._kept.add(step.stream)
            self._expiring[self._place + step.reach].append(self._place)
        for place in self._expiring.pop(self._place, ()):
            del self.ends[place]
        self._place += 1


def _factors(draw: StageDraw, number: int, out: Clocks) -> Factors | None:
    """All factors of an op together, which may be in `out`."""
    jitter = draw.jitter(number)
    if jitter is None or draw.speeds is None:
        return draw.speeds if jitter is None else jitter
    return np.multiply(jitter, draw.speeds, out=out)


def finished(steps: Generator[Arrival, Clocks, None]) -> None:
    """Execute ops none of which meets other stages."""
    assert next(steps, None) is None, "a stage by itself meets no other"
