"""Lower bounds of ops for many plans: each distinct size is computed once.

A collective takes as long as on the fastest of its axes' rings, without contention: no rank's is
shorter. Where ranks may be in any order, that is the fastest ring of all orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.engine.interference import FENCE
from simulator.engine.ticks import to_ticks
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import BatchedProgram, PlacedProgram
from simulator.search.bounds.dispatched import Dispatched
from simulator.search.orders import (
    ANY,
    ORDERS,
    Strides,
    members,
    spans_of,
    strides,
    strides_in_any_order,
)
from simulator.search.space import Space
from topologies.routing.rings import Ring
from workload.grid import Grid
from workload.op import PAIRS, Op
from workload.sizes.arrays import Bytes, Indices, Ticks
from workload.sizes.vectorized import Lanes

NONE = -1
MIX = np.int64(0x9E3779B97F4A7C15 - 2**64)


@dataclass(frozen=True)
class OpBounds:
    """Times of ops on a machine, for the plans of a space."""

    space: Space
    costs: ComputeCosts
    fabric: MachineFabric
    _rings: list[Sequence[Ring]] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)
    _places: dict[tuple[object, ...], Indices] = field(default_factory=dict)
    _ways: dict[tuple[Strides, bool], Sequence[Ring]] = field(default_factory=dict)
    _links: dict[tuple[int, int, int], Sequence[Ring]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def ticks(self, some: BatchedProgram, op: Op) -> Ticks:
        """The least ticks of an op for each row."""
        if isinstance(some, PlacedProgram) and not op.communicates:
            return self.ticks(some.base, op)[some.lane]
        asked = _asked(op)
        if asked not in some.timed:
            some.timed[asked] = self.of_bytes(some, op, some.values(op.nbytes))
        return some.timed[asked]

    def of_bytes(self, some: BatchedProgram, op: Op, nbytes: Ticks) -> Bytes:
        """The same for an op on so many bytes in each row."""
        if op.kind == FENCE:
            return np.zeros(len(some.rows), dtype=np.int64)
        if Dispatched.concerns(op):
            ways = self._dispatched.ways(some.rows, nbytes)
            each = [self._communicated(some, op, *way) for way in ways]
            return np.asarray(np.minimum.reduce(each))
        if op.communicates:
            return self._communicated(some, op, op.kind, nbytes)
        return self._computed(some, op, nbytes)

    def _computed(self, some: BatchedProgram, op: Op, nbytes: Ticks) -> Bytes:
        names = [key for key, value in op.attributes.items() if isinstance(value, Lanes)]
        sizes = [nbytes, *map(some.values, (op.flops, *(op.attributes[key] for key in names)))]
        first, which = _distinct(sizes)
        rest = tuple((key, value) for key, value in op.attributes.items() if key not in names)
        what: tuple[Any, ...] = op.kind, op.dtype, op.part.is_layer, op.label, rest
        found = []
        for at in zip(*(size[first].tolist() for size in sizes), strict=True):
            asked: tuple[Any, ...] = what, at
            if asked not in self._known:
                how = {**op.attributes, **dict(zip(names, at[2:], strict=True))}
                own = replace(op, nbytes=at[0], flops=at[1], attributes=how)
                self._known[asked] = to_ticks(self.costs.seconds(own))
            found.append(self._known[asked])
        return np.array(found, dtype=np.int64)[which]

    def _communicated(self, some: BatchedProgram, op: Op, exchange: str, nbytes: Ticks) -> Bytes:
        sizes = [nbytes, self._rings_of(some, op)]
        first, which = _distinct(sizes)
        pairs = zip(*(size[first].tolist() for size in sizes), strict=True)
        found = [self._on_best(exchange, own, number) for own, number in pairs]
        return np.array(found, dtype=np.int64)[which]

    def _on_best(self, kind: str, nbytes: int, number: int) -> int:
        """The ticks of a collective on the fastest of some rings."""
        asked = kind, nbytes, number
        if asked not in self._known:
            each = (self._on(kind, nbytes, ring) for ring in self._rings[number])
            self._known[asked] = min(each, default=0)
        return self._known[asked]

    def _on(self, kind: str, nbytes: int, ring: Ring) -> int:
        asked = kind, nbytes, ring
        if asked not in self._known:
            self._known[asked] = to_ticks(self.fabric.seconds(kind, nbytes, ring))
        return self._known[asked]

    @cached_property
    def _dispatched(self) -> Dispatched:
        return Dispatched(self.space, self.fabric.machine)

    def link_ticks(self, grid: Grid, nbytes: int) -> list[int]:
        """The least ticks of a message over each link of a ring of stages."""
        found, stride = [], grid.stride("pipe")
        for stage in range(grid.pipe):
            key = stride, grid.pipe, stage
            if key not in self._links:
                self._links[key] = self.fabric.rings([grid.groups(f"link{stage}")])[0][0]
            found.append(min(self._on("send", nbytes, ring) for ring in self._links[key]))
        return found

    def _rings_of(self, some: BatchedProgram, op: Op) -> Indices:
        """For each row the number of the rings, one of which its groups have."""
        key = op.axes, op.kind == "all_reduce", PAIRS in op.traffic
        if key not in some.rings:
            table, which = self.space.grids
            if key not in self._places:
                self._places[key] = np.full((table.shape[1], ANY + 1), NONE, dtype=np.int64)
            numbers, grids = self._places[key], which[some.rows]
            found = numbers[grids, some.orders]
            if (found == NONE).any():
                for place in np.unique((grids * (ANY + 1) + some.orders)[found == NONE]).tolist():
                    grid, order = divmod(place, ANY + 1)
                    numbers[grid, order] = self._number(table[:, grid].tolist(), order, *key)
                found = numbers[grids, some.orders]
            some.rings[key] = found
        return some.rings[key]

    def _number(
        self, sizes: list[int], order: int, axes: tuple[str, ...], reduces: bool, pairs: bool
    ) -> int:
        """The number of the rings of some axes, in an order or in any."""
        spans = spans_of(tuple(sizes), self.shard, ORDERS[order % ANY])
        anywhere = order == ANY
        ways = strides_in_any_order(spans, axes) if anywhere else frozenset({strides(spans, axes)})
        if reduces:  # over axes apart only small sums, which are not worth asking for a ring
            ways = frozenset(way for way in ways if len(way) <= 1)
        size = prod(spans[axis][1] for axis in axes)
        key: object = (ways, pairs) if ways else (size, reduces, pairs)
        if key not in self._numbers:
            self._numbers[key] = len(self._rings)
            every = [ring for way in sorted(ways) for ring in self._rings_along(way, pairs)]
            if not ways and not reduces:
                every = self.fabric.ideal(size, pairs=pairs)
            self._rings.append(self.fabric.fastest(every))
        return self._numbers[key]

    def _rings_along(self, way: Strides, pairs: bool) -> Sequence[Ring]:
        if (way, pairs) not in self._ways:
            groups = members(way, self.space.problem.devices)
            self._ways[way, pairs] = self.fabric.rings([groups], [pairs])[0][0]
        return self._ways[way, pairs]

    @property
    def shard(self) -> int:
        """The part of data that shards, as the question fixes it."""
        return int(self.space.problem.fixed.get("shard", 0))


def _asked(op: Op) -> tuple[object, ...]:
    """What the time of a program's op depends on: micro-batches repeat each other."""
    if op.communicates:
        return op.kind, op.axes, _bare(op.nbytes)
    how = tuple((key, _bare(value)) for key, value in op.attributes.items())
    known = op.kind, op.dtype, op.part.is_layer, op.label
    return *known, how, _bare(op.nbytes), _bare(op.flops)


def _bare(value: object) -> object:
    return value.values.tobytes() if isinstance(value, Lanes) else value


def _distinct(columns: Sequence[Indices]) -> tuple[list[int], Indices]:
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
