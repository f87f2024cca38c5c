"""The proof that a folded step is exact.

A program has exactly one timing: every op starts when the latest of those it follows ends. So a
guessed timing of the whole program is the right one if it satisfies that rule at every op. The
guess: layers (and micro-batches) that the folded program leaves out lie evenly between the two at
the cut, op by op. Then every op's slack behind each op it follows is linear along the omitted
parts, and it is enough to check the rule at the two ends of that line: no slack may be negative at
either, and one must be zero at both.

Letters: n and m count the omitted layers and micro-batches; all times are ticks, exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.network import Ints, Network
from simulator.positions import NONE, Cut, positions_of
from workload.op import Op
from workload.outline import Outline, noted
from workload.program import Program

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Follows:
    """Which op follows which: one entry per pair, grouped by the later op.

    The first entry of each op is the one before it on its stream (-1: the step's begin), the rest
    are its waits. `first` has the place of each op's first entry.
    """

    op: Ints
    earlier: Ints
    first: Ints


@noted
def follows(outline: Outline) -> Follows:
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
    return Follows(*(np.array(each, dtype=np.int64) for each in (later, earlier, first)))


@dataclass(frozen=True)
class Line:
    """One dimension's omitted parts: where ops stand in it, and their twins beside the cut.

    `twins[j]` has for each op that of the same name in part back+j. `reach` is how many parts away
    an op may follow another: two layers, since the deferred additions to a layer's gradients come
    after the backward pass of the next.
    """

    cut: Cut
    at: Ints
    reach: int
    twins: dict[int, Ints]

    @property
    def inside(self) -> Flags:
        """Which ops belong to a part at all."""
        return np.asarray(self.at != NONE)

    def growth(self, times: Ints) -> Ints:
        """By how much an op's time grows from one part to the next; zero for ops of no part."""
        gap = times[:, self.twins[0]] - times[:, self.twins[-1]]
        return np.where(self.inside, gap // (self.cut.omitted + 1), 0)

    def is_even(self, times: Ints) -> bool:
        """Whether omitted parts fit evenly, and in step with the parts beside them."""
        growth = self.growth(times)
        base = times[:, self.twins[-1]]
        for part, twin in self.twins.items():
            distance = part + 1 + (self.cut.omitted if part >= 0 else 0)
            if not (times[:, twin] - base == growth * distance)[:, self.inside].all():
                return False
        return True


def layer_line(cut: Cut, outline: Outline) -> Line:
    """The omitted layers. Those on either side must keep step with them, as far as ops reach: the
    forward pass comes from one side, the backward pass from the other."""
    return _line(cut, outline, "layer", 2, (-3, -2, -1, 0, 1, 2))


def micro_batch_line(cut: Cut, outline: Outline) -> Line:
    """The omitted micro-batches; those one further from the cut may be unlike them."""
    return _line(cut, outline, "micro_batch", 1, (-1, 0))


def _line(cut: Cut, outline: Outline, axis: str, reach: int, beside: tuple[int, ...]) -> Line:
    at = _parts(outline, axis)
    if cut.omitted:
        return Line(cut, at, reach, _twins(outline, axis, cut.back, beside))
    return Line(cut, at, reach, dict.fromkeys(beside, np.arange(len(at), dtype=np.int64)))


@noted
def _parts(outline: Outline, axis: str) -> Ints:
    """Each op's layer or micro-batch."""
    positions = positions_of(outline)
    return np.array([getattr(where, axis) for where in positions], dtype=np.int64)


@noted
def _twins(outline: Outline, axis: str, back: int, beside: tuple[int, ...]) -> dict[int, Ints]:
    """For some parts beside the cut the place of each op's twin there."""
    positions = positions_of(outline)
    index = {where: number for number, where in enumerate(positions)}
    twins = {part: np.arange(len(positions), dtype=np.int64) for part in beside}
    for number, where in enumerate(positions):
        if getattr(where, axis) != NONE:
            for part in beside:
                twins[part][number] = index[where.twin(axis, back + part)]
    return twins


@dataclass(frozen=True)
class Guess:
    """A guessed timing of a whole program, given at the ops of the folded one."""

    program: Program
    network: Network
    layers: Line
    micro_batches: Line
    start: Ints
    end: Ints

    @cached_property
    def follows(self) -> Follows:
        """The pairs to check."""
        return follows(self.program.outline)

    @cached_property
    def earlier_end(self) -> Ints:
        """For each pair the end of the earlier op, (classes, pairs).

        Where a pair straddles a cut, the earlier op is one of those left out, that many parts away
        from its twin in the folded program.
        """
        ends = np.hstack([self.end, np.zeros((len(self.end), 1), dtype=np.int64)])
        result = ends[:, self.follows.earlier]
        for of in (self.layers, self.micro_batches):
            result = result + self._straddles(of) * of.cut.omitted * self._earlier_growth(of)
        return result

    def is_exact(self) -> bool:
        """Whether this is the timing of the whole program."""
        lines = [self.layers, self.micro_batches]
        if any(self._leaps(of).any() for of in lines):
            return False
        if not all(of.is_even(times) for of in lines for times in (self.start, self.end)):
            return False
        steps = self.layers.growth(self.start)
        sides = [steps[:, twin] for twin in self.micro_batches.twins.values()]
        if not (sides[0] == sides[1]).all():
            return False
        slack = self.start[:, self.follows.op] - self.earlier_end
        n, m = (self._slack_change(of) for of in lines)
        extremes = [slack, slack + n, slack + m, slack + n + m]
        if any((extreme < 0).any() for extreme in extremes):
            return False
        return self._everyone_starts(np.sum(extremes, axis=0))

    def _straddles(self, of: Line) -> Ints:
        """1 where the earlier op of a pair stands before the cut and the later behind, -1 the other
        way round, 0 elsewhere and where the pair does not move along."""
        return self._sides(of) * self._moves_along(of)

    def _sides(self, of: Line) -> Ints:
        behind = (of.at >= of.cut.back).astype(np.int64)
        sides = behind[self.follows.op] - behind[self.follows.earlier]
        return np.where(self.follows.earlier >= 0, sides, 0)

    def _leaps(self, of: Line) -> Flags:
        """Pairs over the cut that neither move along nor join the first parts to the last, as a
        micro-batch's end does to the next one's begin: nothing is known of those."""
        op, earlier = self.follows.op, self.follows.earlier
        ends = np.abs(of.at[op] - of.at[earlier]) >= of.cut.kept - of.reach
        over = (self._sides(of) != 0) & of.inside[op] & of.inside[earlier]
        return np.asarray(over & ~self._moves_along(of) & ~ends & (of.cut.omitted > 0))

    def _moves_along(self, of: Line) -> Flags:
        """Whether the two ops of a pair keep their distance all along the omitted parts."""
        op, earlier = self.follows.op, self.follows.earlier
        near = (np.abs(of.at[op] - of.at[earlier]) <= of.reach) & of.inside[op] & of.inside[earlier]
        if of is self.layers:
            step = self.micro_batches.at
            unlike = (step[op] != step[earlier]) & (step[op] != NONE) & (step[earlier] != NONE)
            near = near & ~unlike
        return np.asarray(near & (earlier >= 0))

    def _earlier_growth(self, of: Line) -> Ints:
        return of.growth(self.end)[:, self.follows.earlier] * self._moves_along(of)

    def _slack_change(self, of: Line) -> Ints:
        """How a pair's slack differs at the far end of the omitted parts, beside the cut."""
        op = self.follows.op
        at = of.at[op]
        outward = np.where(at == of.cut.back, -1, 0) + np.where(at == of.cut.back - 1, 1, 0)
        if of is self.micro_batches:
            outward = np.where(at == of.cut.back, -1, 0)
        change = of.growth(self.start)[:, op] - self._earlier_growth(of)
        return np.asarray(outward * of.cut.omitted * change, dtype=np.int64)

    def _everyone_starts(self, slack: Ints) -> bool:
        """Whether each op starts as soon as it can: without slack behind some op it follows, its
        own or, in a collective, another member's."""
        least = np.minimum.reduceat(slack, self.follows.first, axis=1)
        for axes, meetings in self.network.meetings.items():
            chosen = np.array([op.axes == axes for op in self.program.ops])
            which = np.array(meetings.meeting)
            for times, keep in ((least, True), (self.start, False)):
                lowest = np.full((len(meetings.sizes), int(chosen.sum())), np.iinfo(np.int64).max)
                np.minimum.at(lowest, which, times[:, chosen])
                if keep:
                    least[:, chosen] = lowest[which]
                elif not (self.start[:, chosen] == lowest[which]).all():
                    return False
        return bool((least == 0).all())


def key_of(op: Op) -> str:
    """How the time of what is no compute is filed: by its axes, as in `x` or `z+data`, or else by
    its stream."""
    return "+".join(op.axes) or op.stream
