"""The proof that a folded step is exact.

Invariant. A program has exactly one timing: every op starts when the latest of its predecessors
ends. So an extrapolated timing of the whole program is its own timing if and only if it satisfies
this rule at every op.

Why few checks suffice. Extrapolation places the omitted layers (and micro-batches) evenly between
the two parts at the cut, op by op. The slack of an op behind a predecessor (its start less the
predecessor's end) is then linear along the omitted parts, and a linear function is non-negative
everywhere if it is at both ends, and zero everywhere if it is zero at both ends. So the rule is
checked at the two ends alone: no slack is negative, and some predecessor has none.

Cost: arrays with one entry per rank class and pair of op and predecessor of the folded program.

Letters: n and m count the omitted layers and micro-batches; all times are ticks, exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.engine.op_position import Cut, positions_of
from simulator.ranks.classes import RankClasses
from workload.op import NONE
from workload.program import Program
from workload.sizes.arrays import Flags, Indices, Ticks
from workload.structure import Structure, memoized_on


@dataclass(frozen=True)
class Predecessors:
    """Predecessors of ops: one entry per pair, grouped by the later op.

    The first entry of each op is the one before it on its stream (-1: the step's begin), the rest
    are its waits. `first` has the place of each op's first entry.
    """

    op: Indices
    earlier: Indices
    first: Indices


@memoized_on
def predecessors(outline: Structure) -> Predecessors:
    """Every pair of ops of which one must end before the other starts."""
    last: dict[str, int] = {}
    later: list[int] = []
    earlier: list[int] = []
    first: list[int] = []
    for index, (op, waits) in enumerate(zip(outline.ops, outline.waits, strict=True)):
        first.append(len(later))
        preceding = [last.get(op.stream, -1), *waits]
        later += [index] * len(preceding)
        earlier += preceding
        last[op.stream] = index
    return Predecessors(*(np.array(each, dtype=np.int64) for each in (later, earlier, first)))


@dataclass(frozen=True)
class RepeatAxis:
    """The parts (layers, or micro-batches) of a program along one dimension, some of them omitted.

    `at` has the part of every op. `counterparts[j]` has for each op the index of the same op in
    part back+j. `reach` is the largest distance in parts between an op and its predecessor: two
    layers, since the deferred additions to a layer's gradients come after the backward pass of the
    next.
    """

    cut: Cut
    at: Indices
    reach: int
    counterparts: dict[int, Indices]

    @property
    def inside(self) -> Flags:
        """Which ops belong to a part."""
        return np.asarray(self.at != NONE)

    def growth(self, times: Ticks) -> Ticks:
        """By how much an op's time grows from one part to the next; zero for ops of no part."""
        gap = times[:, self.counterparts[0]] - times[:, self.counterparts[-1]]
        return np.where(self.inside, gap // (self.cut.omitted + 1), 0)

    def is_even(self, times: Ticks) -> bool:
        """Whether the parts beside the cut move from one to the next as the omitted ones do."""
        growth = self.growth(times)
        base = times[:, self.counterparts[-1]]
        for part, counterpart in self.counterparts.items():
            distance = part + 1 + (self.cut.omitted if part >= 0 else 0)
            if not (times[:, counterpart] - base == growth * distance)[:, self.inside].all():
                return False
        return True


def layer_axis(cut: Cut, outline: Structure) -> RepeatAxis:
    """The layers. Those on either side of the cut must grow alike as far as predecessors reach: the
    forward pass comes from one side, the backward pass from the other."""
    return _repeat_axis(cut, outline, "layer", 2, (-3, -2, -1, 0, 1, 2))


def micro_batch_axis(cut: Cut, outline: Structure) -> RepeatAxis:
    """The micro-batches; those further from the cut may grow otherwise."""
    return _repeat_axis(cut, outline, "micro_batch", 1, (-1, 0))


def _repeat_axis(
    cut: Cut, outline: Structure, axis: str, reach: int, near_cut: tuple[int, ...]
) -> RepeatAxis:
    at = _parts(outline, axis)
    if cut.omitted:
        return RepeatAxis(cut, at, reach, _counterparts(outline, axis, cut.back, near_cut))
    return RepeatAxis(cut, at, reach, dict.fromkeys(near_cut, np.arange(len(at), dtype=np.int64)))


@memoized_on
def _parts(outline: Structure, axis: str) -> Indices:
    """Each op's layer or micro-batch."""
    positions = positions_of(outline)
    return np.array([getattr(where, axis) for where in positions], dtype=np.int64)


@memoized_on
def _counterparts(
    outline: Structure, axis: str, back: int, near_cut: tuple[int, ...]
) -> dict[int, Indices]:
    """For some parts beside the cut the index of each op's counterpart there."""
    positions = positions_of(outline)
    index = {where: number for number, where in enumerate(positions)}
    counterparts = {part: np.arange(len(positions), dtype=np.int64) for part in near_cut}
    for number, where in enumerate(positions):
        if getattr(where, axis) != NONE:
            for part in near_cut:
                counterparts[part][number] = index[where.counterpart(axis, back + part)]
    return counterparts


@dataclass(frozen=True)
class FoldedTimes:
    """The extrapolated timing of a whole program, given at the ops of the folded one."""

    program: Program
    network: RankClasses
    layers: RepeatAxis
    micro_batches: RepeatAxis
    start: Ticks
    end: Ticks

    @cached_property
    def predecessors(self) -> Predecessors:
        """The pairs to check."""
        return predecessors(self.program.outline)

    @cached_property
    def earlier_end(self) -> Ticks:
        """For each pair the end of the earlier op, (classes, pairs).

        Where a pair straddles a cut, the earlier op is an omitted one, so many parts away from its
        counterpart in the folded program.
        """
        ends = np.hstack([self.end, np.zeros((len(self.end), 1), dtype=np.int64)])
        result = ends[:, self.predecessors.earlier]
        for of in (self.layers, self.micro_batches):
            result = result + self._straddles(of) * of.cut.omitted * self._earlier_growth(of)
        return result

    def is_exact(self) -> bool:
        """Whether this is the timing of the whole program."""
        axes = [self.layers, self.micro_batches]
        if any(self._leaps(of).any() for of in axes):
            return False
        if not all(of.is_even(times) for of in axes for times in (self.start, self.end)):
            return False
        steps = self.layers.growth(self.start)
        sides = [steps[:, counterpart] for counterpart in self.micro_batches.counterparts.values()]
        if not (sides[0] == sides[1]).all():
            return False
        slack = self.start[:, self.predecessors.op] - self.earlier_end
        n, m = (self._slack_change(of) for of in axes)
        extremes = [slack, slack + n, slack + m, slack + n + m]
        if any((extreme < 0).any() for extreme in extremes):
            return False
        return self._everyone_starts(np.sum(extremes, axis=0))

    def _straddles(self, of: RepeatAxis) -> Indices:
        """1 where the earlier op of a pair stands before the cut and the later behind, -1 the other
        way round, 0 elsewhere and where the pair does not move along."""
        return self._sides(of) * self._moves_along(of)

    def _sides(self, of: RepeatAxis) -> Indices:
        behind = (of.at >= of.cut.back).astype(np.int64)
        sides = behind[self.predecessors.op] - behind[self.predecessors.earlier]
        return np.where(self.predecessors.earlier >= 0, sides, 0)

    def _leaps(self, of: RepeatAxis) -> Flags:
        """Pairs over the cut of which nothing is known: they neither keep their distance nor join
        the first parts to the last, as a micro-batch's end does to the next one's begin."""
        op, earlier = self.predecessors.op, self.predecessors.earlier
        ends = np.abs(of.at[op] - of.at[earlier]) >= of.cut.kept - of.reach
        over = (self._sides(of) != 0) & of.inside[op] & of.inside[earlier]
        return np.asarray(over & ~self._moves_along(of) & ~ends & (of.cut.omitted > 0))

    def _moves_along(self, of: RepeatAxis) -> Flags:
        """Whether the two ops of a pair keep their distance all along the omitted parts."""
        op, earlier = self.predecessors.op, self.predecessors.earlier
        near = (np.abs(of.at[op] - of.at[earlier]) <= of.reach) & of.inside[op] & of.inside[earlier]
        if of is self.layers:
            step = self.micro_batches.at
            unlike = (step[op] != step[earlier]) & (step[op] != NONE) & (step[earlier] != NONE)
            near = near & ~unlike
        return np.asarray(near & (earlier >= 0))

    def _earlier_growth(self, of: RepeatAxis) -> Ticks:
        return of.growth(self.end)[:, self.predecessors.earlier] * self._moves_along(of)

    def _slack_change(self, of: RepeatAxis) -> Ticks:
        """How a pair's slack differs at the far end of the omitted parts, beside the cut."""
        op = self.predecessors.op
        at = of.at[op]
        outward = np.where(at == of.cut.back, -1, 0) + np.where(at == of.cut.back - 1, 1, 0)
        if of is self.micro_batches:
            outward = np.where(at == of.cut.back, -1, 0)
        change = of.growth(self.start)[:, op] - self._earlier_growth(of)
        return np.asarray(outward * of.cut.omitted * change, dtype=np.int64)

    def _everyone_starts(self, slack: Ticks) -> bool:
        """Whether each op starts as soon as it can: without slack behind some op it follows, its
        own or, in a collective, another member's."""
        least = np.minimum.reduceat(slack, self.predecessors.first, axis=1)
        for axes, class_groups in self.network.class_groups.items():
            chosen = np.array([op.axes == axes for op in self.program.ops])
            which = np.array(class_groups.of_class)
            for times, keep in ((least, True), (self.start, False)):
                lowest = np.full(
                    (len(class_groups.sizes), int(chosen.sum())), np.iinfo(np.int64).max
                )
                np.minimum.at(lowest, which, times[:, chosen])
                if keep:
                    least[:, chosen] = lowest[which]
                elif not (self.start[:, chosen] == lowest[which]).all():
                    return False
        return bool((least == 0).all())
