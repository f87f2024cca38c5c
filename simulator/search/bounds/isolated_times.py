"""Slots of a few layers simulated without contention, and what further layers add.

The recurrence is that of `simulator/engine/streams.py`, over arrays with one entry per plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workload.dataflow import Waits
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, COMPUTE, NONE, Identity, Op, layer_part
from workload.sizes.arrays import Counts, Indices, Ticks

FEW = 8  # layers, the middle ones of which are mostly alike


@dataclass(frozen=True)
class IsolatedTimes:
    """Ends of slots simulated with a few layers, an entry for each lane.

    `compute` is the end of the compute stream, `every` that of all streams; each further layer adds
    at least `growth` to `compute`. `plain` is the end of the compute stream if it never waited for
    what it adds to gradients at its end; each further layer adds `growth + added` to it. Other
    streams end no sooner with further layers.
    """

    compute: Ticks
    every: Ticks
    growth: Ticks
    plain: Ticks
    added: Ticks

    def ends(self, lane: Indices, more: Counts) -> tuple[Ticks, Ticks]:
        """`compute` and `every` of some lanes with so many more layers."""
        plain = self.plain[lane] + more * (self.growth + self.added)[lane]
        compute = np.maximum(self.compute[lane] + more * self.growth[lane], plain)
        return compute, np.maximum(self.every[lane], compute)


def in_first_layer(op: Op) -> Identity:
    """The identity of an op's counterpart in the first layer, which takes as long."""
    m, part, again, label = op.identity
    return m, layer_part(0) if part.is_layer else part, again, label


def isolated_times(
    ops: Sequence[Op], following: Sequence[Waits], durations: Ticks, lanes: int
) -> IsolatedTimes:
    """Simulate slots: an op starts when the op before it on its stream and its waits have ended.

    `durations` are isolated ticks, (ops, lanes).
    """
    zero = np.zeros(lanes, dtype=np.int64)
    clocks: dict[str, Ticks] = {COMPUTE: zero}
    ends: list[Ticks] = []
    for op, awaited, ticks in zip(ops, following, durations, strict=True):
        start = clocks.get(op.stream, zero)
        for index in awaited:
            start = np.maximum(start, ends[index])
        clocks[op.stream] = end = start + ticks
        ends.append(end)
    tail = len(ops)
    while tail and ops[tail - 1].kind == "accumulate":
        tail -= 1
    added = sum((durations[at] for at in range(tail, len(ops))), zero)
    own = _of_layer(ops, durations, tail, zero)
    before = next((ends[at] for at in range(tail - 1, -1, -1) if ops[at].stream == COMPUTE), zero)
    every = np.maximum.reduce(list(clocks.values()))
    return IsolatedTimes(clocks[COMPUTE], every, _growth(ops, ends, zero), before + added, own)


def _of_layer(ops: Sequence[Op], durations: Ticks, tail: int, zero: Ticks) -> Ticks:
    """The least ticks of one layer's deferred ops at the end, if all layers have some.

    Interference lengthens one of them, but not the others, so the least is taken.
    """
    ticks: dict[int, Ticks] = {}
    for op, own in zip(ops[tail:], durations[tail:], strict=True):
        layer = op.part.layer
        ticks[layer] = ticks.get(layer, zero) + own
    ticks.pop(NONE, None)
    return zero if len(ticks) < FEW else np.minimum.reduce(list(ticks.values()))


def _growth(ops: Sequence[Op], ends: Sequence[Ticks], zero: Ticks) -> Ticks:
    """By how much ops are later from one middle layer to the next; 0 where they disagree."""
    at: dict[int, dict[Identity, Ticks]] = {}
    for op, end in zip(ops, ends, strict=True):
        sums = op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE)
        if op.part.is_layer and op.kind != "accumulate" and not sums:
            at.setdefault(op.part.layer, {})[in_first_layer(op)] = end
    if len(at) < FEW:
        return zero
    order = list(at)  # in issue order: backward passes go from the last layer to the first
    a, b, c, d = (at[order[number]] for number in (3, 4, 5, 6))
    shifts = [late[name] - early[name] for early, late in ((a, b), (b, c), (c, d)) for name in b]
    least = np.minimum.reduce(shifts)
    return np.where(np.maximum.reduce(shifts) == least, least, zero)
