"""Adaptive routing on a dragonfly: how much traffic its bundles let through with detours.

A detour from group g to h goes over another group k, and so takes two bundles. Below, s is the
stretch: the factor by which the most loaded bundle is overloaded; n the number of groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices

Matrix = NDArray[np.float64]

_LEVELS = 3  # pairs held back by ever less crowded bundles; the last level takes all that are left
_ROUNDS = 8  # reweightings of the detours at one stretch; each corrects an overload twice over
_PRECISION = 5e-4  # of the stretch; ten times that from 17 groups on, where each try takes 10 ms
_HOPELESS = 1e9
_FULL = 1 - 1e-3  # a bundle this close to the most loaded one is full


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of groups with traffic on detours, by sender and by receiver.

    Rings over nodes in order send from most groups to one or two others, so pairs are far fewer
    than n * n.
    """

    source: Indices
    target: Indices
    groups: int

    @cached_property
    def _by_target(self) -> Indices:
        return np.argsort(self.target, kind="stable")

    def load(self, detoured: Matrix) -> Matrix:
        """The load of detours (pairs, k) on the bundles: (g, k) and (k, h) of every way from g over
        k to h."""
        load = np.zeros((self.groups, self.groups))
        order = self._by_target
        for ends, rows, bundles in (
            (self.target[order], detoured[order], load.T),
            (self.source, detoured, load),
        ):
            begins = np.flatnonzero(np.diff(ends, prepend=-1))
            if begins.size:
                bundles[ends[begins]] += np.add.reduceat(rows, begins, axis=0)
        return load

    def least(self, bundles: Matrix) -> Matrix:
        """The lesser value of the two bundles on each way, (pairs, k)."""
        return np.minimum(bundles[self.source], bundles.T[self.target])


@dataclass(frozen=True, eq=False)
class _Split:
    """How the demand is routed: `straight` (n, n), and what each of the `pairs` that have more
    traffic than that sends over each group k: `detoured` (pairs, k)."""

    straight: Matrix
    pairs: _Pairs
    detoured: Matrix

    def load(self) -> Matrix:
        """What each bundle carries."""
        return self.straight + self.pairs.load(self.detoured)


def granted(demand: Matrix, bundle: float) -> Matrix:
    """The traffic of each pair of groups that the bundles carry, at most its demand, (n, n).

    Overflowing pairs spread over detours so that the most loaded bundle is as little loaded as
    possible; if that is still too much, all pairs that cross it shrink by one factor, so that equal
    flows stay equal, and the others share what is left in the same way. Every bundle carries at
    most its capacity.

    Not modelled: the best split; detours are weighted by the room on their two bundles, which is
    optimal for symmetric traffic. Slingshot decides packet by packet, on local load.
    """
    n = len(demand)
    left = np.full((n, n), bundle)
    np.fill_diagonal(left, 0.0)
    if (demand <= left).all():
        return demand
    result = np.zeros_like(demand)
    open_pairs, stretch = demand > 0, 1.0
    for level in range(_LEVELS):
        wanted = np.where(open_pairs, demand, 0.0)
        split = _least_stretched(wanted, left)
        worst = math.inf if split is None else _worst(split, left)
        if split is None or (level and worst > stretch):
            break  # the last level's split, shrunk by its stretch, fits what is left as well
        stretch = max(1.0, worst)
        through = open_pairs
        if stretch > 1 and level + 1 < _LEVELS:
            through = open_pairs & _crossing(split, split.load() >= left * stretch * _FULL)
        result[through] = demand[through] / stretch
        left = left - _only(split, through).load() / stretch
        left[left < 1e-9 * bundle] = 0.0
        open_pairs = open_pairs & ~through
        if not open_pairs.any():
            return result
    result[open_pairs] = demand[open_pairs] / stretch
    return result


def _least_stretched(demand: Matrix, left: Matrix) -> _Split | None:
    """The split of the least stretch, by bisection; None if some pair has no way at all."""
    low = high = _bound(demand, left)
    split = _at_stretch(demand, left, low)
    while split is None:
        low, high = high, 1.5 * high
        if high > _HOPELESS:
            return None
        split = _at_stretch(demand, left, high)
    precision = _PRECISION if len(demand) <= 16 else 10 * _PRECISION
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        found = _at_stretch(demand, left, middle)
        if found is None:
            low = middle
        else:
            split, high = found, middle
    return split


def _bound(demand: Matrix, left: Matrix) -> float:
    """No stretch below 1 or this does: what a group sends or receives must fit its own bundles."""
    ratios = [
        np.divide(d, room, out=np.zeros_like(d), where=room > 0).max()
        for d, room in ((demand.sum(axis=i), left.sum(axis=i)) for i in (0, 1))
    ]
    return max(1.0, *map(float, ratios))


def _at_stretch(demand: Matrix, left: Matrix, stretch: float) -> _Split | None:
    """Straight as far as bundles stretched by that factor reach, and the rest over detours."""
    straight = np.minimum(demand, left * stretch)
    room = left * stretch - straight
    over = np.where(demand - straight > 1e-9 * demand, demand - straight, 0.0)
    if 2 * over.sum() > room.sum() * (1 + 1e-9):
        return None
    source, target = np.nonzero(over)
    pairs, wanted = _Pairs(source, target, len(demand)), over[source, target]
    weight = pairs.least(room)
    for _ in range(_ROUNDS):
        total = weight.sum(axis=1)
        if (total <= 0).any():
            return None
        detoured = weight * (wanted / total)[:, None]
        load = pairs.load(detoured)
        if (load <= room * (1 + 1e-9)).all():
            return _Split(straight, pairs, detoured)
        fits = np.minimum(1.0, np.divide(room, load, out=np.ones_like(load), where=load > 0)) ** 2
        weight = detoured * pairs.least(fits)
    return None


def _worst(split: _Split, left: Matrix) -> float:
    """How full the most loaded bundle is."""
    load = split.load()
    return float(np.divide(load, left, out=np.zeros_like(load), where=load > 0).max())


def _crossing(split: _Split, full: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pairs with traffic on a full bundle."""
    found = full & (split.straight > 0)
    source, target = split.pairs.source, split.pairs.target
    on_way = (split.detoured > 0) & (full[source] | full.T[target])
    found[source, target] |= on_way.any(axis=1)
    return found


def _only(split: _Split, kept: NDArray[np.bool_]) -> _Split:
    of_pair = kept[split.pairs.source, split.pairs.target]
    detoured = np.where(of_pair[:, None], split.detoured, 0.0)
    return _Split(np.where(kept, split.straight, 0.0), split.pairs, detoured)
