"""Repetition as data: the ops of a program of many layers, from a program of a few.

From one layer to the next of its kind a program repeats. Where layers of several kinds take turns,
as windows and whole attention do, a turn has one of each; where all are alike it has one layer.
Behind all passes of the lowering, the ops that stand between an op of one turn and the same op of
the next form a unit, which recurs for every turn: in the forward passes, in the backward passes,
and in whatever else goes through the layers, of every micro-batch. So the whole program is that of
a few turns with each unit written once more for each turn that is left out. An op's waits are
carried over by their distance in turns, or from the nearer end of what recurs. Layers before and
behind, of which there are as many in both programs, are like what is of no layer.

That the few turns do repeat is looked up: beside the middle of the few, every op of a unit must
recur at the same distance on both sides. That the lowering writes all further layers like these is
its own matter; tests compare with programs that were lowered whole.

Cost: linear in the ops of the whole program, once for each structure and number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topologies.records import record
from workload.op import NONE
from workload.sizes.arrays import Flags, Indices

REACH = 2  # turns between an op and what it waits for, unless it waits across the whole model


class IrregularError(Exception):
    """A program whose layers do not repeat."""


@dataclass(frozen=True, eq=False)
class OpTable:
    """The ops of a program, as arrays.

    `base` says of which op of the few layers each is a copy, `kind` is equal for ops that differ in
    micro-batch and layer alone, `layer` and `micro_batch` are NONE where an op is of none. The
    waits of all ops stand one after another, those of op i from `wait_offsets[i]` on.
    """

    base: Indices
    kind: Indices
    layer: Indices
    micro_batch: Indices
    wait_offsets: Indices
    waits: Indices


@record
class Repeat:
    """Layers that stand for more: from layer `first` on `period` layers recur `kept` times in the
    program of a few layers, `whole` times in that of all.
    """

    first: int
    period: int
    kept: int
    whole: int

    @property
    def stop(self) -> int:
        """The layer behind them, in the program of a few."""
        return self.first + self.kept * self.period

    @property
    def left_out(self) -> int:
        """How many layers the program of a few lacks."""
        return (self.whole - self.kept) * self.period


def repeated(table: OpTable, repeats: Sequence[Repeat]) -> OpTable:
    """The ops of a program of all layers, given those of one with a few, and which of these stand
    for more, in their order.

    An IrregularError says that the few do not repeat.
    """
    for repeat in reversed(repeats):  # so that layers before it keep their numbers
        table = _Repetition(table, repeat).table()
    return table


@record(slots=False)
class _Units:
    """Stretches of ops that recur: from op `first` on, `length` ops; `step` is 1 where turns go up
    from copy to copy, -1 where they go down."""

    first: Indices
    length: Indices
    step: Indices


class _Repetition:
    """A program of a few layers on its way to one of more.

    Layers that stand for more recur in `turns` of one period each; their `turn` is NONE for ops of
    any other layer or of none. A row has the ops that differ in their turn alone; an op of no turn
    has none.
    """

    def __init__(self, ops: OpTable, repeat: Repeat) -> None:
        self.ops, self.repeat = ops, repeat
        self.kept, self.whole = repeat.kept, repeat.whole
        self.more, self.middle = self.whole - self.kept, (self.kept - 1) // 2
        self.inside: Flags = (ops.layer >= repeat.first) & (ops.layer < repeat.stop)
        turn, phase = np.divmod(ops.layer - repeat.first, repeat.period)
        self.turn: Indices = np.where(self.inside, turn, NONE)
        self.phase: Indices = phase
        keys = np.stack([ops.kind, ops.micro_batch, phase])[:, self.inside]
        self.rows = np.full(len(ops.layer), NONE, dtype=np.int64)
        self.rows[self.inside] = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)

    @cached_property
    def places(self) -> Indices:
        """Where the op of each row stands in each turn, (rows, turns); NONE: it has none there.

        The first turn and the last one may have fewer ops than the others, or more.
        """
        count = int(self.rows.max(initial=NONE)) + 1
        found = np.full((count, self.kept), NONE, dtype=np.int64)
        found[self.rows[self.inside], self.turn[self.inside]] = np.flatnonzero(self.inside)
        if (found != NONE).sum() != self.inside.sum():
            raise IrregularError("two ops are told apart by nothing")
        return found

    @cached_property
    def recurring(self) -> Flags:
        """The rows that have an op in all middle turns; others have it at an end alone."""
        middle = self.places[:, 1:-1] != NONE
        if (middle.any(axis=1) != middle.all(axis=1)).any():
            raise IrregularError("turns in the middle have different ops")
        return np.asarray(middle.all(axis=1))

    @cached_property
    def units(self) -> _Units:
        """All units, in the order of the program."""
        here, there = self.places[:, self.middle], self.places[:, self.middle + 1]
        low, length, step = np.minimum(here, there), np.abs(there - here), np.sign(there - here)
        found: list[tuple[int, int, int]] = []
        placed = ~self.recurring
        for row in np.argsort(low, kind="stable").tolist():
            if placed[row]:
                continue
            first, count = int(low[row]), int(length[row])
            own = self.rows[first : first + count]
            if (own == NONE).any() or placed[own].any() or len(set(own.tolist())) != count:
                raise IrregularError("a unit has ops of no layer, or one of them twice")
            placed[own] = True
            self._check(first, count, int(step[row]))
            found.append((first, count, int(step[row])))
        return _Units(*np.array(sorted(found), dtype=np.int64).reshape(-1, 3).T)

    def _check(self, first: int, count: int, step: int) -> None:
        """That the turns on either side of a unit recur at its distance."""
        stretch = slice(first, first + count)
        rows, at = self.rows[stretch], self.turn[stretch]
        if (at < 1).any() or (at > self.kept - 2).any():
            raise IrregularError("a unit reaches an end of what recurs")
        near = self.places[rows[:, None], at[:, None] + np.array([-1, 0, 1])]
        if (near == NONE).any() or (np.diff(near, axis=1) != step * count).any():
            raise IrregularError("ops of a unit recur at different distances")

    def _check_waits(self) -> None:
        """That ops of units wait for the same as those of the next turn: as many turns away, or
        across the whole model."""
        ops, (one,) = self.ops, np.nonzero(self.unit_of != NONE)
        other = one + self.units.length[self.unit_of[one]]
        counts = np.diff(ops.wait_offsets)
        if (counts[one] != counts[other]).any():
            raise IrregularError("ops of a unit wait for more or less than those of the next turn")
        place = np.arange(counts[one].sum()) - np.repeat(
            np.cumsum(counts[one]) - counts[one], counts[one]
        )
        awaited, turns = [], []
        for each in (one, other):
            owner = np.repeat(each, counts[each])
            awaited.append(ops.waits[ops.wait_offsets[owner] + place])
            turns.append(self.turn[owner])
        within = (self.turn[awaited] != NONE) & (np.abs(self.turn[awaited] - turns) <= REACH)
        rows, away = self.rows[awaited], self.turn[awaited] - turns
        near = within.all(axis=0) & (rows[0] == rows[1]) & (away[0] == away[1])
        same = ~within.any(axis=0) & (awaited[0] == awaited[1])
        if not (near | same).all():
            raise IrregularError("ops of a unit wait for other turns than those of the next one")

    @cached_property
    def unit_of(self) -> Indices:
        """The unit of each op, NONE outside of them."""
        found = np.full(len(self.rows), NONE, dtype=np.int64)
        pairs = zip(self.units.first, self.units.length, strict=True)
        for number, (first, count) in enumerate(pairs):
            found[first : first + count] = number
        return found

    def moved(self, ops: Indices) -> Indices:
        """Where ops stand in the whole program, those of units in their first copy."""
        behind = np.concatenate([[0], np.cumsum(self.units.length)]) * self.more
        ends = self.units.first + self.units.length
        return np.asarray(ops + behind[np.searchsorted(ends, ops, side="right")])

    @cached_property
    def index(self) -> Indices:
        """Where the op of each row stands in each turn of the whole program, (rows, turns)."""
        places, more, units = self.places, self.more, self.units
        found = np.full((len(places), self.whole), NONE, dtype=np.int64)
        unit = np.where(places == NONE, NONE, self.unit_of[places])
        rows, own = np.nonzero(unit != NONE)
        if not (np.bincount(rows, minlength=len(places)) == self.recurring).all():
            raise IrregularError("an op recurs in no unit, or in two")
        number = unit[rows, own]
        copies = np.arange(more + 1)
        turn = own[:, None] + np.where(units.step[number][:, None] > 0, copies, more - copies)
        first = self.moved(places[rows, own])
        found[rows[:, None], turn] = first[:, None] + copies * units.length[number][:, None]
        middle = np.full(len(places), self.middle, dtype=np.int64)
        middle[rows] = own
        each = np.arange(self.kept)
        for shift, side in ((0, each < middle[:, None]), (more, each > middle[:, None])):
            at, turns = np.nonzero(side & (places != NONE))
            found[at, turns + shift] = self.moved(places[at, turns])
        return found

    def table(self) -> OpTable:
        """The ops of the whole program."""
        self._check_waits()
        total = len(self.rows) + self.more * int(self.units.length.sum())
        source, turn = (np.full(total, NONE, dtype=np.int64) for _ in range(2))
        outside = np.flatnonzero(self.unit_of == NONE)
        source[self.moved(outside)] = outside
        copied = np.flatnonzero(self.unit_of != NONE)
        lengths = self.units.length[self.unit_of[copied]]
        copies = np.arange(self.more + 1)[:, None]
        source[self.moved(copied) + copies * lengths] = copied
        rows, turns = np.nonzero(self.index != NONE)
        turn[self.index[rows, turns]] = turns
        assert (source != NONE).all(), "every op of the whole program is a copy"
        offsets, waits = self._waits(source, turn)
        kinds, micro_batches = self.ops.kind[source], self.ops.micro_batch[source]
        base, layers = self.ops.base[source], self._layers(source, turn)
        return OpTable(base, kinds, layers, micro_batches, offsets, waits)

    def _layers(self, source: Indices, turn: Indices) -> Indices:
        """The layers of the whole program's ops, given their sources and turns."""
        repeat, own = self.repeat, self.ops.layer[source]
        inside = repeat.first + turn * repeat.period + self.phase[source]
        outside = np.where(own >= repeat.stop, own + repeat.left_out, own)
        return np.asarray(np.where(turn != NONE, inside, outside))

    def _waits(self, source: Indices, turn: Indices) -> tuple[Indices, Indices]:
        counts = np.diff(self.ops.wait_offsets)[source]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        owner = np.repeat(np.arange(len(source)), counts)
        place = np.arange(offsets[-1]) - offsets[owner]
        awaited = self.ops.waits[self.ops.wait_offsets[source[owner]] + place]
        return offsets, self._awaited(source[owner], turn[owner], awaited)

    def _awaited(self, source: Indices, turn: Indices, awaited: Indices) -> Indices:
        """What copies wait for, given what their sources wait for."""
        own, other = self.turn[source], self.turn[awaited]
        near = (own != NONE) & (np.abs(other - own) <= REACH)
        far = np.where(other <= self.middle, other, other + self.more)
        which = np.where(near, turn + other - own, far)
        found = self.moved(awaited)
        inside = other != NONE
        if ((which[inside] < 0) | (which[inside] >= self.whole)).any():
            raise IrregularError("an op waits for a turn that is not there")
        found[inside] = self.index[self.rows[awaited[inside]], which[inside]]
        if (found == NONE).any():
            raise IrregularError("an op waits for one that is not there")
        return found
