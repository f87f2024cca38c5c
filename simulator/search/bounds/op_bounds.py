"""Lower bounds of ops for many plans: each distinct size is computed once.

A collective takes as long as on the fastest of its axes' rings, without contention: no rank's is
shorter. Where ranks may be in any order, that is the fastest ring of all orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from math import prod

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.engine.interference import FENCE
from simulator.engine.ticks import to_ticks
from simulator.ranks.fabric import MachineFabric
from simulator.search.asked.least_rows import seconds_of
from simulator.search.bounds.batched_programs import (
    BatchedProgram,
    Parts,
    PlacedProgram,
    input_columns,
)
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
from workload.passes.exchanges.kernels import Reached
from workload.sizes.arrays import Bytes, Indices, Ticks
from workload.sizes.vectorized import UNKNOWN, Lanes, first_of, has_lanes, inputs_of, numbers_in

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
    _known: dict[tuple[object, ...], dict[tuple[int, ...], int]] = field(default_factory=dict)
    _on_ring: dict[tuple[str | Reached, int, Ring], int] = field(default_factory=dict)

    def ticks(self, some: BatchedProgram, op: Op) -> Ticks:
        """The least ticks of an op for each row."""
        if isinstance(some, PlacedProgram) and not op.communicates:
            return self.ticks(some.base, op)[some.lane]
        asked = asked_of(op)
        if asked not in some.timed:
            inputs = inputs_of(op.nbytes)
            some.timed[asked] = self.of_bytes(some, op, some.values(op.nbytes), inputs)
        return some.timed[asked]

    def host_ticks(self, some: BatchedProgram, op: Op) -> Ticks | None:
        """For how many ticks the host issues an op in each row, none where the op takes no time;
        None if it is never the bottleneck."""
        if isinstance(some, PlacedProgram):
            own = self.host_ticks(some.base, op)
            return None if own is None else own[some.lane]
        key = "host", op.label, op.block.part.is_layer, *asked_of(op)
        if key not in some.hosts:
            some.hosts[key] = self._issued(some, op)
        return some.hosts[key]

    def _issued(self, some: BatchedProgram, op: Op) -> Ticks | None:
        first = {name: first_of(value) for name, value in op.attributes.items()}
        if not self.costs.host_s(replace(op, attributes=first)):
            return None
        sizeless = replace(op, nbytes=0, flops=0)
        issued = self._computed(some, sizeless, some.values(0), inputs_of(0), self.costs.host_s)
        return np.where(self.ticks(some, op) > 0, issued, 0)

    def of_bytes(self, some: BatchedProgram, op: Op, nbytes: Bytes, inputs: int = UNKNOWN) -> Ticks:
        """The same for an op on so many bytes in each row, which follow from some `inputs` of
        lowering, where these are known."""
        if op.kind == FENCE:
            return np.zeros(len(some.rows), dtype=np.int64)
        if Dispatched.concerns(op):
            ways = self._dispatched.ways(some.rows, nbytes)
            each = [self._communicated(some, op, *way) for way in ways]
            return np.asarray(np.minimum.reduce(each))
        if op.communicates:
            return self._communicated(some, op, op.kind, nbytes, inputs)
        return self._computed(some, op, nbytes, inputs, self._seconds)

    @cached_property
    def _seconds(self) -> Callable[[Op], float]:
        return seconds_of(self.space.problem.gpt, self.fabric.machine.device, self.costs.seconds)

    def _computed(
        self,
        some: BatchedProgram,
        op: Op,
        nbytes: Bytes,
        inputs: int,
        seconds: Callable[[Op], float],
    ) -> Ticks:
        varied = {key: value for key, value in op.attributes.items() if has_lanes(value)}
        numbers = [op.flops, *chain.from_iterable(map(numbers_in, varied.values()))]
        sizes = [nbytes, *map(some.values, numbers)]
        first, which = self._parts(some, sizes, inputs_of(*numbers) | inputs)
        rest = tuple((key, value) for key, value in op.attributes.items() if key not in varied)

        def ticks(nbytes: int, flops: int, *attributes: int) -> int:
            left = iter(attributes)
            filled = {key: _filled(value, left) for key, value in varied.items()}
            how = {**op.attributes, **filled}
            own = replace(op, nbytes=nbytes, flops=flops, attributes=how)
            return to_ticks(seconds(own))

        what = seconds.__name__, op.kind, op.dtype, op.block.part.is_layer, op.label, rest
        return self._ticks_of(what, sizes, first, ticks)[which]

    def _communicated(
        self,
        some: BatchedProgram,
        op: Op,
        exchange: str | Reached,
        nbytes: Bytes,
        inputs: int = UNKNOWN,
    ) -> Ticks:
        """The ticks of a collective on the fastest of some rings."""
        key, rings = self._rings_of(some, op)
        sizes = [nbytes, rings]
        first, which = self._parts(some, sizes, inputs, key)

        def ticks(nbytes: int, number: int) -> int:
            each = (self._on(exchange, nbytes, ring) for ring in self._rings[number])
            return min(each, default=0)

        return self._ticks_of((exchange,), sizes, first, ticks)[which]

    def _ticks_of(
        self,
        what: tuple[object, ...],
        sizes: Sequence[Indices],
        rows: list[int],
        ticks: Callable[..., int],
    ) -> Ticks:
        """The ticks of something in the sizes of some rows, calculated where they are not known."""
        known = self._known.setdefault(what, {})
        every = list(zip(*(size[rows].tolist() for size in sizes), strict=True))
        found = list(map(known.get, every))
        if None in found:
            known |= {key: ticks(*key) for key in dict.fromkeys(every) if key not in known}
            found = [known[key] for key in every]
        return np.array(found, dtype=np.int64)

    def _parts(
        self,
        some: BatchedProgram,
        sizes: Sequence[Indices],
        inputs: int,
        rings: tuple[object, ...] = (),
    ) -> Parts:
        """The rows in parts of equal sizes: those with equal inputs, and on the same rings, where
        it is known from which inputs the sizes follow."""
        if inputs == UNKNOWN:
            return _distinct(sizes)
        if (inputs, rings) not in some.parts:
            if rings:
                columns = [self._parts(some, sizes, inputs)[1], some.rings[rings]]
            elif isinstance(some, PlacedProgram):
                columns = [self._parts(some.base, sizes, inputs)[1][some.lane]]
            else:
                columns = input_columns(self.space, some.rows, inputs)
            some.parts[inputs, rings] = _distinct([np.zeros_like(some.rows), *columns])
        return some.parts[inputs, rings]

    def _on(self, kind: str | Reached, nbytes: int, ring: Ring) -> int:
        asked = kind, nbytes, ring
        if asked not in self._on_ring:
            self._on_ring[asked] = to_ticks(self.fabric.seconds(kind, nbytes, ring))
        return self._on_ring[asked]

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

    def _rings_of(self, some: BatchedProgram, op: Op) -> tuple[tuple[object, ...], Indices]:
        """For each row the number of the rings, one of which its groups have; and their key."""
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
        return key, some.rings[key]

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


def asked_of(op: Op) -> tuple[object, ...]:
    """What the time of a program's op depends on: micro-batches repeat each other."""
    if op.communicates:
        return op.kind, op.axes, _bare(op.nbytes)
    how = tuple((key, _bare(value)) for key, value in op.attributes.items())
    known = op.kind, op.dtype, op.part.is_layer, op.label
    return *known, how, _bare(op.nbytes), _bare(op.flops)


def _filled(value: object, numbers: Iterator[int]) -> object:
    """As many of some numbers as a value has: one, or a tuple of them."""
    if isinstance(value, tuple):
        return tuple(islice(numbers, len(value)))
    return next(numbers)


def _bare(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    if not isinstance(value, Lanes):
        return value
    return ("lanes", value.number) if value.number >= 0 else value.values.tobytes()


def _distinct(columns: Sequence[Indices]) -> Parts:
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
