"""How long the ops of many plans take at least: each distinct size is asked for once.

A collective lasts as long as on the fastest of its axes' rings, alone: no rank's is shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs import ComputeCosts
from simulator.network import Fabric
from simulator.search.sized import Sized
from simulator.search.space import Space
from simulator.ticks import to_ticks
from workload.grid import AXES, Grid
from workload.lanes import Lanes, lanes
from workload.op import Op

Ints = NDArray[np.int64]
MIX = np.int64(0x9E3779B97F4A7C15 - 2**64)


@dataclass(frozen=True)
class Clock:
    """Times of ops on a machine, for the plans of a space."""

    space: Space
    costs: ComputeCosts
    fabric: Fabric
    _rings: list[Sequence[Any]] = field(default_factory=list)
    _numbers: dict[tuple[tuple[int, int], ...], int] = field(default_factory=dict)
    _links: dict[tuple[int, int], Sequence[Any]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def ticks(self, some: Sized, op: Op) -> Ints:
        """The least ticks of an op for each row."""
        return self._communicated(some, op) if op.communicates else self._computed(some, op)

    def of_bytes(self, some: Sized, op: Op, nbytes: Ints) -> Ints:
        """The same for an op on so many bytes in each row."""
        return self.ticks(some, replace(op, nbytes=lanes(nbytes)))

    def _computed(self, some: Sized, op: Op) -> Ints:
        names = [key for key, value in op.attributes.items() if isinstance(value, Lanes)]
        sizes = [op.nbytes, op.flops, *(op.attributes[key] for key in names)]
        first, which = _distinct([some.values(size) for size in sizes])
        rest = tuple((key, value) for key, value in op.attributes.items() if key not in names)
        what: tuple[Any, ...] = op.kind, op.dtype, op.name.partition(".")[2], rest
        found = []
        for at in first:
            asked: tuple[Any, ...] = (what, *(_at(size, at) for size in sizes))
            if asked not in self._known:
                how = {**op.attributes, **dict(zip(names, asked[3:], strict=True))}
                own = replace(op, nbytes=asked[1], flops=asked[2], attributes=how)
                self._known[asked] = to_ticks(self.costs.seconds(own))
            found.append(self._known[asked])
        return np.array(found, dtype=np.int64)[which]

    def _communicated(self, some: Sized, op: Op) -> Ints:
        number = self._lines_of(some, op.axes)
        first, which = _distinct([some.values(op.nbytes), number])
        found = []
        for at in first:
            nbytes, key = _at(op.nbytes, at), int(number[at])
            asked = (op.kind, nbytes, key)
            if asked not in self._known:
                seconds = [self.fabric.seconds(op.kind, nbytes, r) for r in self._rings[key]]
                self._known[asked] = min(map(to_ticks, seconds))
            found.append(self._known[asked])
        return np.array(found, dtype=np.int64)[which]

    def link_ticks(self, pipe: int, nbytes: int) -> list[int]:
        """The least ticks of a message over each link of a ring of stages. Which ranks a link joins
        follows from the number of stages alone."""
        found = []
        grid = Grid(data=self.space.question.devices // pipe, pipe=pipe)
        for stage in range(pipe):
            key = pipe, stage
            if key not in self._links:
                self._links[key] = self.fabric.rings([grid.groups(f"link{stage}")])[0][0]
            seconds = [self.fabric.seconds("send", nbytes, ring) for ring in self._links[key]]
            found.append(min(map(to_ticks, seconds)))
        return found

    def _lines_of(self, some: Sized, axes: tuple[str, ...]) -> Ints:
        """For each row the number of its groups' rings."""
        if axes not in some.rings:
            grids = [self.space.columns[key][some.rows] for key in AXES]
            first, which = _distinct(grids)
            numbers = []
            for at in first:
                sizes = {key: int(column[at]) for key, column in zip(AXES, grids, strict=True)}
                grid = Grid(**sizes, shard=self.shard)
                key = lines(grid, axes)
                if key not in self._numbers:
                    self._numbers[key] = len(self._rings)
                    self._rings.append(self.fabric.rings([grid.groups(*axes)])[0][0])
                numbers.append(self._numbers[key])
            some.rings[axes] = np.array(numbers, dtype=np.int64)[which]
        return some.rings[axes]

    @property
    def shard(self) -> int:
        """The part of data that shards, as the question fixes it."""
        return int(self.space.question.fixed.get("shard", 0))


def lines(grid: Grid, axes: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """What tells the groups of some axes apart from others on as many ranks: strides and sizes.

    >>> lines(Grid(x=2, z=4, data=8), ("z", "data")) == lines(Grid(x=2, z=32), ("z",))
    True
    """
    found: list[tuple[int, int]] = []
    for stride, size in sorted((grid.stride(axis), grid.size(axis)) for axis in axes):
        if size == 1:
            continue
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0], found[-1][1] * size
        else:
            found.append((stride, size))
    return tuple(found)


def _at(number: Any, lane: int) -> int:
    return int(number.values[lane]) if isinstance(number, Lanes) else number


def _distinct(columns: Sequence[Ints]) -> tuple[list[int], Ints]:
    """The first rows of all different ones, and for each row which of them it is."""
    varied = [column for column in columns if not (column == column[0]).all()]
    if not varied:
        return [0], np.zeros(len(columns[0]), dtype=np.int64)
    table = np.stack(varied)
    marks = np.zeros(table.shape[1], dtype=np.int64)
    for column in table:
        marks = (marks ^ column) * MIX
        marks ^= marks >> 29
    _, first, which = np.unique(marks, return_index=True, return_inverse=True)
    if not (table == table[:, first[which]]).all():  # two rows with the same mark
        _, first, which = np.unique(table, axis=1, return_index=True, return_inverse=True)
    return first.tolist(), np.asarray(which.ravel(), dtype=np.int64)
