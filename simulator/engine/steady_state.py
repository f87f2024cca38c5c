"""The skip-ahead rule: micro-batches that repeat are left out of the simulation, exactly.

Rule. The ops of a step of many micro-batches are a beginning, a unit that recurs for every
micro-batch (not its ops alone: gathers issued ahead for the next one stand in it), and an end. A
step of a few micro-batches is simulated. Say that it has three units in a row, each of which starts
and ends, op by op, P ticks later than the one before. Then a unit may be put in behind the second
one as often as wanted, and all that follows is P later each time. Rank classes that do not meet in
micro-batches may differ in P: where they meet in the end is found by simulating the few once more,
with each class beginning as much later as it is put off.

Why that is exact. An op starts when the last of those it follows ends (`streams.py`), and how long
a collective lasts depends on those in flight beside it, relative to its begin (`contention.py`);
timings are the only ones that satisfy both. So it suffices that both hold in the longer step:

1. What an op of a unit follows within the length of one unit is there for each copy, as much
   earlier as for the original. What it follows further back must not make it wait: where that is
   over no later than something nearer, in the few micro-batches, it is so with more of them too,
   since nothing is put off by more than what comes behind it.
2. Collectives further apart than one unit are never in flight at once: this is looked up around
   the second and around the third unit, on every rank class. Those of the same unit, or of two in a
   row, are so in the same way for every copy: behind the second unit stands the third, which is
   like what a copy begins with. So three are needed, and more add nothing.

Nothing from before the second unit may be what ends last. Where one of these does not hold, more
micro-batches are simulated, up to all of them.

Cost: arrays with one entry per op, or per wait, of a few micro-batches.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.columns import Columns
from topologies.records import record
from workload.op import NONE
from workload.sizes.arrays import Flags, Indices, Ticks

UNITS = 3  # in a row, that are alike


@record
class Unit:
    """Ops that recur from micro-batch to micro-batch: thrice from op `first` on, `length` each.

    A further unit is put in at `stop`, behind the second one, of which it is a copy.
    """

    first: int
    length: int

    @property
    def stop(self) -> int:
        """The op before which units are put in."""
        return self.first + 2 * self.length

    @property
    def last(self) -> int:
        """The op behind the three units."""
        return self.first + UNITS * self.length

    @property
    def copied(self) -> slice:
        """The ops that a further unit is a copy of."""
        return slice(self.stop - self.length, self.stop)


def recurring_unit(ops: Columns) -> Unit | None:
    """The ops that recur in the middle of a program; none if there are too few micro-batches."""
    middle = int(ops.micro_batch.max(initial=NONE)) // 2
    (here,) = np.nonzero(ops.micro_batch == middle)
    if not len(here):
        return None
    at = int(here[0])
    kind = ops.same_but_layer
    alike = (kind == kind[at]) & (ops.layer == ops.layer[at])
    (there,) = np.nonzero(alike & (ops.micro_batch == middle + 1))
    if len(there) != 1:
        return None
    length = int(there[0]) - at
    first = at - length
    unit = Unit(first, length)
    if first < 0 or unit.last > ops.count or not _is_whole(ops, unit, middle):
        return None
    return unit if _recurs(ops, unit) else None


def _is_whole(ops: Columns, unit: Unit, micro_batch: int) -> bool:
    """Whether a unit has as many ops as a micro-batch has in all: where all forward passes come
    before all backward passes, each is a unit of its own, and there is no such."""
    return bool(
        (ops.micro_batch[unit.copied] != NONE).sum() == (ops.micro_batch == micro_batch).sum()
    )


def _recurs(ops: Columns, unit: Unit) -> bool:
    """Whether each op of the second and third unit is what it is in the unit before, but for its
    micro-batch, and waits for the same ops: those of a unit later, or the same ones."""
    before = np.arange(unit.first, unit.first + (UNITS - 1) * unit.length)
    after = before + unit.length
    if not all((each[before] == each[after]).all() for each in (ops.same_but_layer, ops.layer)):
        return False
    later = ops.micro_batch[after] - ops.micro_batch[before]
    if not (later == (ops.micro_batch[before] != NONE)).all():
        return False
    offsets, waits = ops.flow.waits
    counts = np.diff(offsets)
    if not (counts[before] == counts[after]).all():
        return False
    bounds = offsets[[before[0], before[-1] + 1, after[0], after[-1] + 1]].tolist()
    one, other = waits[bounds[0] : bounds[1]], waits[bounds[2] : bounds[3]]
    return bool(((other == one) | (other == one + unit.length)).all())


@record(slots=False)
class Followed:
    """The ops that ops follow, on their own streams and by waits, as pairs: `earlier` has those
    before the op in `op`, in the order of `op`."""

    op: Indices
    earlier: Indices


def followed(ops: Columns) -> Followed:
    """What each op follows."""
    own = [np.flatnonzero(ops.stream == number) for number in sorted(set(ops.stream.tolist()))]
    op = [ops.flow.waits.owners, *(s[1:] for s in own)]
    earlier = np.concatenate([ops.flow.waits.places, *(s[:-1] for s in own)])
    order = np.argsort(np.concatenate(op), kind="stable")
    return Followed(np.concatenate(op)[order], earlier[order])


def periods(
    unit: Unit, pairs: Followed, collectives: Flags, start: Ticks, end: Ticks
) -> Ticks | None:
    """By how much each further unit puts off what follows, (classes, 1); None if that is not known.

    `start` and `end` are arrays (classes, ops).
    """
    before = slice(unit.first, unit.first + (UNITS - 1) * unit.length)
    after = slice(unit.first + unit.length, unit.last)
    shifts = start[:, [after.start]] - start[:, [before.start]]
    for times in (start, end):
        if not (times[:, after] - times[:, before] == shifts).all():
            return None
    early, late = end[:, : unit.copied.start], end[:, unit.copied.start :]
    if (early.max(axis=1, initial=0) > late.max(axis=1)).any():
        return None
    if _waits_far_back(unit, pairs, end):
        return None
    for place in (unit.stop, unit.stop + unit.length):
        if _in_flight_across(place - unit.length, place, collectives, start, end):
            return None
    return np.asarray(shifts)


def _waits_far_back(unit: Unit, pairs: Followed, end: Ticks) -> bool:
    """Whether any op from the second unit on is made to wait by one more than a unit before it, or
    follows none that is nearer."""
    later = pairs.op >= unit.stop - unit.length
    op, earlier = pairs.op[later], pairs.earlier[later]
    far = op - earlier > unit.length
    follows = np.zeros(end.shape[1], dtype=np.bool_)
    follows[op[~far]] = True
    if not follows[unit.copied.start :].all():
        return True
    near = np.zeros_like(end)
    for number in range(len(end)):
        np.maximum.at(near[number], op[~far], end[number, earlier[~far]])
    return bool((end[:, earlier[far]] > near[:, op[far]]).any())


def _in_flight_across(last: int, first: int, collectives: Flags, start: Ticks, end: Ticks) -> bool:
    """Whether any collective before op `last` is in flight beside one from op `first` on."""
    behind, ahead = collectives[:last], collectives[first:]
    if not (behind.any() and ahead.any()):
        return False
    over = end[:, :last][:, behind].max(axis=1)
    return bool((over > start[:, first:][:, ahead].min(axis=1)).any())
