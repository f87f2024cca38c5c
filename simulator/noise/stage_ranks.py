"""The ranks of a stage as an array with one dimension for each axis, and maxima over groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from math import prod

import numpy as np
from numpy.typing import NDArray

from simulator.ranks.classes import RankClasses
from workload.grid import Grid
from workload.op import ACROSS_STAGES
from workload.sizes.arrays import Indices

Clocks = NDArray[np.float64]  # ticks, (samples, ranks)
WIDE = 512  # numbers side by side, from which on numpy's own maximum along an axis is the fastest


@dataclass(frozen=True, eq=False)
class StageRanks:
    """The ranks of one stage, in rank order, and for each of them the place of its class among the
    `numbers` of the stage's classes."""

    grid: Grid
    stage: int
    ranks: Indices
    numbers: list[int]
    class_of: Indices
    _shapes: dict[tuple[str, ...], tuple[tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def of(cls, network: RankClasses, grid: Grid, stage: int) -> StageRanks:
        """The ranks of a stage of this network."""
        numbers = [number for number, own in enumerate(network.stages) if own == stage]
        ranks = np.flatnonzero(grid.stages() == stage)
        class_of = np.searchsorted(np.array(numbers), network.groups.classes[ranks])
        return cls(grid, stage, ranks, numbers, class_of)

    def maxima(self, clocks: Clocks, axes: tuple[str, ...]) -> Clocks:
        """The latest clock of each group over these axes, as an array (samples, *dimensions) in
        which the dimensions that the groups extend along have size 1. Groups over stages too count
        as their ranks of this one."""
        shape, along = self._shape(axes)
        found = clocks.reshape(len(clocks), *shape)
        for place in along:
            found = _maximum(found, place + 1)
        return found

    def spread(self, maxima: Clocks, axes: tuple[str, ...], out: Clocks) -> None:
        """Give every rank what its group has; `maxima` as they come from `maxima`."""
        shape, _ = self._shape(axes)
        out.reshape(len(out), *shape)[...] = maxima

    def _shape(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dimensions, with neighbours taken together where groups extend along both or none,
        and those that groups extend along."""
        if axes not in self._shapes:
            inside = self.grid.dimensions(*(axis for axis in axes if axis not in ACROSS_STAGES))
            sizes = [item for item in self.grid.stage_dimensions().items() if item[1] > 1]
            runs = [
                (is_along, prod(size for _, size in run))
                for is_along, run in groupby(sizes, key=lambda item: item[0] in inside)
            ]
            along = tuple(place for place, (is_along, _) in enumerate(runs) if is_along)
            self._shapes[axes] = tuple(size for _, size in runs), along
        return self._shapes[axes]


def _maximum(values: Clocks, axis: int) -> Clocks:
    """The maxima along an axis, which stays with size 1. Where few numbers lie side by side, halves
    are compared with each other until one is left: three times as fast as numpy's own."""
    if prod(values.shape[axis + 1 :]) >= WIDE:
        return np.asarray(values.max(axis=axis, keepdims=True))
    before = (slice(None),) * axis
    while (count := values.shape[axis]) > 1:
        half = count // 2
        found = np.maximum(
            values[(*before, slice(0, half))], values[(*before, slice(half, 2 * half))]
        )
        if count % 2:
            first = found[(*before, slice(0, 1))]
            np.maximum(first, values[(*before, slice(count - 1, count))], out=first)
        values = found
    return values
