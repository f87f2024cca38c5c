"""Colour refinement: the coarsest partition of ranks into those that behave alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workload.sizes.arrays import Indices


def refined(
    colours: Indices, rings_of: list[Indices], groups: list[Indices], group_of: list[Indices]
) -> Indices:
    """Split ranks by their rings, then by their groups' colours, until nothing splits further."""
    for rings in rings_of:
        colours = _combined(colours, rings + 1)
    count = 0
    while int(colours.max()) + 1 > count:
        count = int(colours.max()) + 1
        if count in (1, len(colours)):
            break
        marks = _hashed(colours)
        for members, index in zip(groups, group_of, strict=True):
            sums = marks[members].sum(axis=1)
            begins = np.append(True, sums[1:] != sums[:-1])
            signature = np.unique(sums[begins], return_inverse=True)[1][np.cumsum(begins) - 1]
            colours = _combined(colours, of_rank(signature, index) + 1)
    return colours


def of_rank(of_group: Indices, group_of: Indices) -> Indices:
    """What holds for each rank's group, -1 for a rank in none."""
    return np.where(group_of >= 0, of_group[group_of], -1)


def _combined(colours: Indices, other: Indices) -> Indices:
    pairs = colours * (int(other.max(initial=0)) + 1) + other
    return numbered(pairs)


def numbered(keys: Indices) -> Indices:
    """The keys as numbers from 0 on, in the same order."""
    span = int(keys.max()) + 1
    if span > 8 * len(keys):
        return np.asarray(np.unique(keys, return_inverse=True)[1], dtype=np.int64)
    present = np.zeros(span, dtype=np.int64)
    present[keys] = 1
    return np.asarray((present.cumsum() - 1)[keys], dtype=np.int64)


def first_of_each(numbers: Indices) -> Indices:
    """Where each of the numbers from 0 on stands first."""
    first = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers), dtype=np.int64)[::-1]
    return first


def _hashed(colours: Indices) -> NDArray[np.uint64]:
    """A 64-bit mark per colour whose sum over a group stands for the group's multiset of colours.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    z = (colours.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
