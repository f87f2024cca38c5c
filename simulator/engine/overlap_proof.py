"""The proof that collectives contend in the omitted parts as they do in the simulated ones.

Invariant. How long a collective takes depends on the collectives in flight on its ranks from its
begin to its end, relative to its begin, and on nothing else (`contention.py`). So an extrapolated
timing has the right durations if every collective of the whole program overlaps with the same
collectives, at the same distances in time, as its counterpart in the folded program, whose duration
was simulated. For a cut that omits parts this follows from four steps:

1. The parts beside the cut are a series: from each to the next all collectives move by the same
   period P, in the folded program and in the extrapolated one. (A series: the forward passes of a
   micro-batch's layers, or their backward passes, or micro-batches; P tells them apart.)
2. A part of a series takes no longer than d + 1 periods, where the parts beside the cut reach d
   further than one to either side. So parts further apart than d do not overlap, and what overlaps
   within a series stands at the same distance everywhere.
3. No collective outside the series overlaps the part that stands for the omitted ones, or those.
4. Any other two collectives that overlap, before parts are put in or after, are moved alike.

Steps 1 and 2 hold for the omitted parts since these lie evenly between those beside the cut.

Cost: a sort of the collectives of every rank class, and their overlapping pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from simulator.engine.fold_proof import RepeatAxis
from workload.op import Op
from workload.sizes.arrays import Flags, Indices, Ticks


@dataclass(frozen=True)
class OpTimes:
    """When ops start and end: arrays (classes, ops)."""

    start: Ticks
    end: Ticks

    @property
    def last(self) -> Ticks:
        """How long ops last."""
        return self.end - self.start

    def hull(self, ops: Indices) -> tuple[Ticks, Ticks]:
        """The first start and the last end of some ops, for each class."""
        return (
            self.start[:, ops].min(axis=1, keepdims=True),
            self.end[:, ops].max(axis=1, keepdims=True),
        )

    def overlaps(self, first: Ticks, last: Ticks) -> Flags:
        """Which ops overlap a span of time, for each class."""
        return np.asarray((self.start < last) & (self.end > first))


@dataclass(frozen=True)
class Insertion:
    """The insertion of an axis' omitted parts: times of the kept ops `before` and `after`.

    A series has ops of one `group` each.
    """

    ops: Sequence[Op]
    axis: RepeatAxis
    group: Indices
    before: OpTimes
    after: OpTimes

    def repeats(self) -> bool:
        """Whether every collective of the whole overlaps as its counterpart in the simulation
        does."""
        if not self.axis.cut.omitted:
            return True
        keeps_step = self._keeps_step(self.before, 0) and self._keeps_step(
            self.after, self.axis.cut.omitted
        )
        if not (keeps_step and (self.before.last == self.after.last).all()):
            return False
        series = self._series()
        return all(
            self._is_undisturbed(series == one_series)
            for one_series in range(int(series.max()) + 1)
        ) and all(self._moves_alike(series, times) for times in (self.before, self.after))

    @cached_property
    def _collectives(self) -> Flags:
        """The collectives that take any time."""
        collective = np.array([op.is_collective for op in self.ops])
        return np.asarray(collective & (self.before.end > self.before.start).any(axis=0))

    @property
    def _part(self) -> Indices:
        return self.axis.at - self.axis.cut.back

    @cached_property
    def _window(self) -> Flags:
        """The collectives of the parts beside the cut."""
        parts = list(self.axis.counterparts)
        near = (self._part >= min(parts)) & (self._part <= max(parts))
        return np.asarray(self._collectives & self.axis.inside & near)

    @cached_property
    def _steps(self) -> Ticks:
        """By how much ops move from one part to the next."""
        return self.axis.growth(self.after.start)

    def _keeps_step(self, times: OpTimes, omitted: int) -> bool:
        """Step 1."""
        steps = self._steps[:, self._window]
        if not ((steps == steps[:1]) & (steps != 0)).all():
            return False
        for part, counterpart in self.axis.counterparts.items():
            distance = part + 1 + (omitted if part >= 0 else 0)
            for each in (times.start, times.end):
                moved = each[:, counterpart] - each[:, self.axis.counterparts[-1]]
                if not (moved[:, self._window] == steps * distance).all():
                    return False
        return True

    def _series(self) -> Indices:
        """For each collective beside the cut the number of its series, -1 for all others."""
        series = np.full(len(self.ops), -1, dtype=np.int64)
        keys = np.stack([self._steps[0], self.group])[:, self._window]
        series[self._window] = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
        return series

    def _is_undisturbed(self, one_series: Flags) -> bool:
        """Steps 2 and 3 for one series."""
        own = np.flatnonzero(one_series & (self._part == 0))
        period = int(self._steps[0, own[0]])
        further = min(max(self.axis.counterparts), -min(self.axis.counterparts))
        first, last = self.before.hull(own)
        if (last - first > (further + 1) * abs(period)).any():
            return False
        strangers = self._collectives & ~one_series
        if self.before.overlaps(first, last)[:, strangers].any():
            return False
        first, last = self.after.hull(own)
        nearest, furthest = -period, -period * self.axis.cut.omitted
        first, last = first + min(nearest, furthest), last + max(nearest, furthest)
        return not self.after.overlaps(first, last)[:, strangers].any()

    def _moves_alike(self, series: Indices, times: OpTimes) -> bool:
        """Step 4."""
        shift = self.after.start - self.before.start
        if not _one_by_one(self.ops, times, self._collectives):
            return False
        for number, a, b in _overlapping(self.ops, times, self._collectives):
            together = (series[a] == series[b]) & (series[a] >= 0)
            if not (together | (shift[number, a] == shift[number, b])).all():
                return False
        return True


def _queues(ops: Sequence[Op], start: Ticks, collectives: Flags) -> list[Indices]:
    """The collectives of each stream, by their start. At the cut that is not issue order: what
    is issued ahead for the next part changes places with what others were put in behind."""
    streams: dict[str, list[int]] = {}
    for index in np.flatnonzero(collectives).tolist():
        streams.setdefault(ops[index].stream, []).append(index)
    queues = [np.array(queue, dtype=np.int64) for queue in streams.values()]
    return [queue[np.argsort(start[queue], kind="stable")] for queue in queues]


def _one_by_one(ops: Sequence[Op], times: OpTimes, collectives: Flags) -> bool:
    """Whether a stream has one collective in flight at a time."""
    return all(
        (end[queue[:-1]] <= start[queue[1:]]).all()
        for start, end in zip(times.start, times.end, strict=True)
        for queue in _queues(ops, start, collectives)
    )


def _overlapping(
    ops: Sequence[Op], times: OpTimes, collectives: Flags
) -> Iterator[tuple[int, Indices, Indices]]:
    """For each class the pairs of collectives that overlap, stream by stream."""
    for number, (start, end) in enumerate(zip(times.start, times.end, strict=True)):
        for one, other in combinations(_queues(ops, start, collectives), 2):
            first = np.searchsorted(end[other], start[one], side="right")
            count = np.maximum(np.searchsorted(start[other], end[one], side="left") - first, 0)
            a = np.repeat(one, count)
            within = np.arange(len(a)) - np.repeat(np.cumsum(count) - count, count)
            yield number, a, other[np.repeat(first, count) + within]


def overlaps_repeat(
    ops: Sequence[Op],
    axes: tuple[RepeatAxis, RepeatAxis],
    times: tuple[OpTimes, OpTimes, OpTimes],
) -> bool:
    """Whether an extrapolated timing has the right durations of collectives.

    `axes` are the layers and the micro-batches; `times` those of the folded program, with all
    layers put in, and with all micro-batches too. Ops of layers but of no micro-batch, like the
    gradients' all-reduces, come with the last one.
    """
    layers, micro_batches = axes
    folded, deep, whole = times
    last = micro_batches.cut.kept - 1
    own = np.where(micro_batches.inside, micro_batches.at, last)
    return (
        Insertion(ops, layers, own, folded, deep).repeats()
        and Insertion(ops, micro_batches, np.zeros_like(own), deep, whole).repeats()
    )
