"""The rings of a space's shapes, numbered: equal rings have one number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import count
from math import prod

import numpy as np

from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import BatchedProgram, PlacedProgram
from simulator.search.orders import ANY, MANY_ORDERS
from simulator.search.rings.strides import (
    Span,
    Strides,
    members,
    spans_of,
    strides_in_any_order,
    strides_of,
)
from simulator.search.space import Space
from topologies.records import record
from topologies.routing.rings import Ring
from workload.grid import Grid
from workload.op import PAIRS, Op
from workload.sizes.arrays import Indices, Parts, distinct

NONE = -1
PLACES = ("places",)  # in place of a key
RingKey = tuple[tuple[str, ...], bool, bool]  # axes, whether it reduces, whether it is of pairs


def key_of(op: Op) -> RingKey:
    """What the rings of a collective depend on, beside the ranks."""
    return op.axes, op.kind == "all_reduce", PAIRS in op.traffic


@record(slots=False)
class RingNumbers:
    """The rings of the shapes of a space on a machine; `rings` has them by number: the different
    rings on one of which a collective is fastest."""

    space: Space
    fabric: MachineFabric
    rings: list[tuple[Ring, ...]] = field(default_factory=list)
    _contents: dict[tuple[Ring, ...], int] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    _listed: list[int] = field(default_factory=list)
    _numbers_at: dict[RingKey, Indices] = field(default_factory=dict)
    _ways: dict[tuple[Strides, bool], Sequence[Ring]] = field(default_factory=dict)
    _links: dict[tuple[int, int, int], Sequence[Ring]] = field(default_factory=dict)

    def of(self, some: BatchedProgram, key: RingKey) -> Indices:
        """For each row the number of the rings, one of which its groups have."""
        if key not in some.rings:
            own = self._places_of(some)
            numbers = self._numbers_at.get(key, np.zeros(0, dtype=np.int64))
            lacking = np.full(len(self._places) - len(numbers), NONE, dtype=np.int64)
            self._numbers_at[key] = numbers = np.concatenate([numbers, lacking])
            if (fresh := numbers[own] == NONE).any():
                where = np.unique(own[fresh])
                places = np.array([self._listed[at] for at in where.tolist()])
                numbers[where] = self._numbered(places, key)
            some.rings[key] = numbers[own]
        return some.rings[key]

    def _places_of(self, some: BatchedProgram) -> Indices:
        """For each row the number of its place: a grid and an order of its ranks."""
        if PLACES not in some.rings:
            places = self.space.grids[1][some.rows] * MANY_ORDERS + some.orders
            first, which = distinct([places])
            every = places[first].tolist()
            fresh = [place for place in every if place not in self._places]
            self._places.update(zip(fresh, count(len(self._places))))
            self._listed.extend(fresh)
            some.rings[PLACES] = np.array([self._places[place] for place in every])[which]
        return some.rings[PLACES]

    def alike(self, some: PlacedProgram) -> Parts:
        """Lanes of a placed program in parts of equal rows whose collectives go around the same
        rings."""
        keys = dict.fromkeys(key_of(op) for op in some.program.ops if op.communicates)
        return distinct([some.lane, *(self.of(some, key) for key in keys)])

    def of_link(self, grid: Grid, stage: int) -> Sequence[Ring]:
        """The rings of the links between two neighbouring stages."""
        key = grid.stride("pp"), grid.pp, stage
        if key not in self._links:
            self._links[key] = self.fabric.rings([grid.groups(f"link{stage}")])[0][0]
        return self._links[key]

    def _numbered(self, places: Indices, key: RingKey) -> Indices:
        """The numbers of the rings of some axes at different places."""
        grids, orders = np.divmod(places, MANY_ORDERS)
        sizes = self.space.grids[0][:, grids]
        axes, *how = key
        spans = spans_of(sizes, self.shard, np.where(orders < ANY, orders, 0))
        ways, which = strides_of(spans, axes)
        each = [self._number(frozenset({way}), _size(way), *how) for way in ways]
        found = np.array(each, dtype=np.int64)[which]
        for at in np.flatnonzero(orders >= ANY).tolist():
            own = {axis: (int(far[at]), int(many[at])) for axis, (far, many) in spans.items()}
            size = _size(own[axis] for axis in axes)
            found[at] = self._number(strides_in_any_order(own, axes), size, *how)
        return found

    def _number(self, ways: frozenset[Strides], size: int, reduces: bool, pairs: bool) -> int:
        """The number of the rings of groups of this size, along one of some ways if known."""
        if reduces:  # over axes apart only small sums, which are not worth asking for a ring
            ways = frozenset(way for way in ways if len(way) <= 1)
        key: object = (ways, pairs) if ways else (size, reduces, pairs)
        if key not in self._numbers:
            every = [ring for way in sorted(ways) for ring in self._rings_along(way, pairs)]
            if not ways and not reduces:
                every = self.fabric.ideal(size, pairs=pairs)
            found = tuple(self.fabric.fastest(every))
            self._numbers[key] = self._contents.setdefault(found, len(self.rings))
            if self._numbers[key] == len(self.rings):
                self.rings.append(found)
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


def _size(spans: Iterable[Span]) -> int:
    return prod(size for _, size in spans)
