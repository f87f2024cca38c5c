"""Slots of a few layers simulated without contention, and what further layers add.

The recurrence is that of `simulator/engine/streams.py`, over arrays with one entry per plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.costs.kernel_launch import between_waits, issued_by_block
from simulator.engine.interference import Interference, interference_of
from simulator.search.bounds.layouts import FEW, ChunkLayers
from topologies.records import record
from workload.dataflow import Waits
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, COMPUTE, NONE, Identity, Op, layer_part
from workload.sizes.arrays import Counts, Indices, Ticks


class IssuedTimes(NamedTuple):
    """For how long the compute stream is busy with slots as their host issues them, and what each
    further unit of layers adds to that, an entry for each lane."""

    total: Ticks
    growth: Ticks


@record(slots=False)
class IsolatedTimes:
    """Ends of slots simulated with a few layers, an entry for each lane.

    `compute` is the end of the compute stream, `every` that of all streams; each further layer adds
    at least `growth` to `compute`. `plain` is the end of the compute stream if it never waited for
    what it adds to gradients at its end; each further layer adds `growth + added` to it. Other
    streams end no sooner with further layers. The compute stream ends no sooner than it is busy as
    the host issues its ops, where that is known.
    """

    compute: Ticks
    every: Ticks
    growth: Ticks
    plain: Ticks
    added: Ticks
    issued: IssuedTimes | None = None

    def ends(self, lane: Indices, more: Counts | int) -> tuple[Ticks, Ticks]:
        """`compute` and `every` of some lanes with so many more units of layers."""
        plain = self.plain[lane] + more * (self.growth + self.added)[lane]
        compute = np.maximum(self.compute[lane] + more * self.growth[lane], plain)
        if self.issued is not None:
            total, growth = self.issued
            compute = np.maximum(compute, total[lane] + more * growth[lane])
        return compute, np.maximum(self.every[lane], compute)


@dataclass(frozen=True, eq=False)
class Slots:
    """The ops of some slots of a few layers and what they wait for; what depends on these alone is
    found once for all plans. `layers` are those of the model that the ops were lowered with;
    the base has `base_layers`."""

    ops: Sequence[Op]
    waits: Sequence[Waits]
    layers: ChunkLayers
    base_layers: int = 1
    _known: dict[tuple[str, ...], Interference] = field(default_factory=dict, repr=False)

    @cached_property
    def sorts(self) -> tuple[list[Identity], Indices]:
        """The identities of the ops' counterparts in the base, and each op's place there."""
        known: dict[Identity, int] = {}
        sort = [known.setdefault(self._in_base(op), len(known)) for op in self.ops]
        return list(known), np.array(sort, dtype=np.int64)

    def _in_base(self, op: Op) -> Identity:
        """The identity of an op's counterpart in the base, which takes as long."""
        m, part, again, label = op.identity
        if part.is_layer:
            part = layer_part(self._number_in_base(part.layer - self.layers.skip))
        return m, part, again, label

    def _number_in_base(self, place: int) -> int:
        """That of a layer by its place among these, or behind them of one for further tokens."""
        bases = self.layers.bases
        return bases[place] if place < len(bases) else place - len(bases) + self.base_layers

    @cached_property
    def issued(self) -> list[tuple[Indices, bool]]:
        """The ops of each block that the host issues, apart where it waits for counts; with whether
        it has waited for these."""
        return [
            (np.array(part, dtype=np.int64), waited)
            for own in issued_by_block(self.ops)
            for part, waited in between_waits(self.ops, own)
            if part
        ]

    def interference(self, streams: tuple[str, ...] = ()) -> Interference:
        """Which compute runs beside which collectives; on `streams` some are in flight before."""
        if streams not in self._known:
            self._known[streams] = interference_of(self.ops, self.waits, streams)
        return self._known[streams]

    @cached_property
    def tail(self) -> int:
        """The first of the deferred additions to gradients that all other ops come before."""
        tail = len(self.ops)
        while tail and self.ops[tail - 1].kind == "accumulate":
            tail -= 1
        return tail

    @cached_property
    def last_compute(self) -> int:
        """The last compute op before these; NONE if there is none."""
        places = range(self.tail - 1, -1, -1)
        return next((at for at in places if self.ops[at].stream == COMPUTE), NONE)

    @cached_property
    def middle(self) -> tuple[Indices, Indices] | None:
        """The ops of middle units, and those of the unit before each; None of too few units."""
        at: dict[int, dict[tuple[int, Identity], int]] = {}
        for place, op in enumerate(self.ops):
            sums = op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE)
            unit = self.layers.unit_of(op.part.layer) if op.part.is_layer else None
            if unit is not None and op.kind != "accumulate" and not sums:
                at.setdefault(unit[0], {})[unit[1], self._in_base(op)] = place
        if len(at) < FEW:
            return None
        order = list(at)  # in issue order: backward passes go from the last layer to the first
        a, b, c, d = (at[order[number]] for number in (3, 4, 5, 6))
        pairs = [
            (late[name], early[name]) for early, late in ((a, b), (b, c), (c, d)) for name in b
        ]
        late, early = np.array(pairs, dtype=np.int64).T
        return late, early


def issued_times(slots: Slots, alone: Ticks, durations: Ticks, issued: Ticks) -> IssuedTimes:
    """How long the compute stream is busy with slots whose ops the host takes `issued` ticks for:
    with every block as long as its ops last, or as long as issuing them takes.

    `durations` are the isolated ticks `alone` with what interference adds. What other streams make
    it wait for is left out, since the engine adds what a block's ops miss to all of its kernels, of
    which some may run while others wait.
    """
    zero = np.zeros(durations.shape[1], dtype=np.int64)
    total, units = zero, dict[int, Ticks]()
    for part, waited in slots.issued:
        own, each = alone[part], issued[part]
        lasts = each.sum(axis=0)
        if waited:
            rest = own[::-1].cumsum(axis=0)[::-1]
            lasts = np.maximum(lasts, (each.cumsum(axis=0) + rest).max(axis=0))
        is_kernel = [not slots.ops[at].communicates for at in part.tolist()]
        lasts = np.where(own[is_kernel].any(axis=0), lasts, 0)
        ticks = np.maximum(durations[part].sum(axis=0), lasts)
        total = total + ticks
        of = slots.ops[part[0]].block.part
        unit = slots.layers.unit_of(of.layer) if of.is_layer else None
        if unit is not None:
            units[unit[0]] = units.get(unit[0], zero) + ticks
    return IssuedTimes(total, _least(units, zero))


def isolated_times(slots: Slots, durations: Ticks) -> IsolatedTimes:
    """Simulate slots: an op starts when the op before it on its stream and its waits have ended.

    `durations` are isolated ticks, (ops, lanes).
    """
    lanes = durations.shape[1]
    zero = np.zeros(lanes, dtype=np.int64)
    clocks: dict[str, Ticks] = {COMPUTE: zero}
    ends = np.empty_like(durations)
    for op, awaited, ticks, end in zip(slots.ops, slots.waits, durations, ends, strict=True):
        start = clocks.get(op.stream, zero)
        for index in awaited:
            start = np.maximum(start, ends[index])
        clocks[op.stream] = np.add(start, ticks, out=end)
    added = durations[slots.tail :].sum(axis=0)
    own = _of_unit(slots, durations, zero)
    before = ends[slots.last_compute] if slots.last_compute != NONE else zero
    every = np.maximum.reduce(list(clocks.values()))
    compute = clocks[COMPUTE].copy()  # or else all ends would be kept with it
    return IsolatedTimes(compute, every, _growth(slots, ends, zero), before + added, own)


def _of_unit(slots: Slots, durations: Ticks, zero: Ticks) -> Ticks:
    """The least ticks of one unit's deferred ops at the end, if all units have some.

    Interference lengthens one of them, but not the others, so the least is taken.
    """
    ticks: dict[int, Ticks] = {}
    for op, own in zip(slots.ops[slots.tail :], durations[slots.tail :], strict=True):
        unit = slots.layers.unit_of(op.part.layer) if op.part.is_layer else None
        if unit is not None:
            ticks[unit[0]] = ticks.get(unit[0], zero) + own
    return _least(ticks, zero)


def _least(units: Mapping[int, Ticks], zero: Ticks) -> Ticks:
    """The least ticks of one unit, if there are enough of them."""
    return zero if len(units) < FEW else np.minimum.reduce(list(units.values()))


def _growth(slots: Slots, ends: Ticks, zero: Ticks) -> Ticks:
    """By how much ops are later from one middle layer to the next; 0 where they disagree."""
    if slots.middle is None:
        return zero
    late, early = slots.middle
    shifts = ends[late] - ends[early]
    least = shifts.min(axis=0)
    return np.where(shifts.max(axis=0) == least, least, zero)
