"""Lower bounds of ops for many plans: each distinct size is computed once.

A collective takes as long as on the fastest of its axes' rings, without contention: no rank's is
shorter. Where ranks may be in any order, that is the fastest ring of all orders, or of those that
have an axis first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import chain, islice
from typing import cast

import numpy as np

from simulator.costs.analytic import ComputeCosts
from simulator.engine.engines import TOO_LONG
from simulator.engine.interference import FENCE
from simulator.engine.ticks import to_ticks
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import (
    BatchedProgram,
    PlacedProgram,
    input_columns,
)
from simulator.search.bounds.dispatched import Dispatched
from simulator.search.bounds.nonmonotonic_latency import may_fall
from simulator.search.rings.ring_numbers import RingNumbers, key_of
from simulator.search.space import Space
from topologies.records import record
from topologies.routing.rings import Ring
from workload.errors import PlanCannotRunError
from workload.exchange.own_rows import COLLECTIVES, TRADES
from workload.grid import Grid
from workload.kinds import SEND
from workload.op import Op
from workload.op_attributes import Attributes
from workload.sizes.arrays import Bytes, Indices, Parts, Ticks, distinct
from workload.sizes.vectorized import UNKNOWN, Lanes, first_of, has_lanes, inputs_of, numbers_in
from workload.transport import PLAIN, Transport


@record(slots=False)
class OpBounds:
    """Times of ops on a machine, for the plans of a space."""

    space: Space
    costs: ComputeCosts
    fabric: MachineFabric
    _known: dict[tuple[object, ...], dict[tuple[int, ...], int]] = field(default_factory=dict)
    _on_ring: dict[tuple[Transport, int, Ring], int] = field(default_factory=dict)
    _last: list[tuple[BatchedProgram, int]] = field(default_factory=list)

    def sharing(self, some: BatchedProgram) -> BatchedProgram:
        """The program, sharing the times of its ops with the last one if that is of equal sizes:
        programs of other recomputation or ZeRO have mostly equal ops."""
        tensor = int(self.space.columns["etp"][some.rows[0]])  # an input that is no size
        last, its = self._last[-1] if self._last else (some, tensor)
        if last.steps is some.steps is not None and its == tensor:
            some = replace(some, timed=last.timed, hosts=last.hosts)
            some = replace(some, rings=last.rings, parts=last.parts)
        self._last[:] = [(some, tensor)]
        return some

    def ticks(self, some: BatchedProgram, op: Op) -> Ticks:
        """The least ticks of an op for each row."""
        if isinstance(some, PlacedProgram) and (some.stands_as_base or not op.communicates):
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
        first = cast(Attributes, {name: first_of(value) for name, value in op.attributes.items()})
        if not self.costs.host_s(replace(op, attributes=first)):
            return None
        sizeless = replace(op, nbytes=0, flops=0)
        issued = self._computed(some, sizeless, some.values(0), inputs_of(0), self.costs.host_s)
        return np.where(self.ticks(some, op) > 0, issued, 0)

    def of_bytes(self, some: BatchedProgram, op: Op, nbytes: Bytes, inputs: int = UNKNOWN) -> Ticks:
        """The least ticks of an op on so many bytes in each row, which follow from some `inputs` of
        lowering, where these are known."""
        if op.kind == FENCE or self._bounds_nothing(op):
            return np.zeros(len(some.rows), dtype=np.int64)
        if Dispatched.concerns(op):
            if not self._dispatched.has_bounds:
                return np.zeros(len(some.rows), dtype=np.int64)
            ways = self._dispatched.ways(some.rows, nbytes)
            each = [self._communicated(some, op, *way) for way in ways]
            return np.asarray(np.minimum.reduce(each))
        if op.communicates:
            nbytes = self._dispatched.gathered(some.rows, op, nbytes)
            return self._communicated(some, op, op.transport, nbytes, inputs)
        return self._computed(some, op, nbytes, inputs, self.costs.seconds)

    def _bounds_nothing(self, op: Op) -> bool:
        """Whether an op of a plan may have more bytes than here, and take less time."""
        own = op.label in TRADES and self._dispatched.own_rows
        return own and bool(may_fall(self.fabric.machine, op.kind))

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
            how = cast(Attributes, {**op.attributes, **filled})
            own = replace(op, nbytes=nbytes, flops=flops, attributes=how)
            return to_ticks(seconds(own))

        what = seconds.__name__, op.kind, op.dtype, op.block.part.is_layer, op.label, rest
        return self._ticks_of(what, sizes, first, ticks)[which]

    def _communicated(
        self,
        some: BatchedProgram,
        op: Op,
        transport: Transport,
        nbytes: Bytes,
        inputs: int = UNKNOWN,
    ) -> Ticks:
        """The ticks of a collective on the fastest of some rings."""
        key = key_of(op)
        rings = self.rings.of(some, key)
        sizes = [nbytes, rings]
        first, which = self._parts(some, sizes, inputs, key)

        def ticks(nbytes: int, number: int) -> int:
            each = (self._on(transport, nbytes, ring) for ring in self.rings.rings[number])
            return min(each, default=0)

        return self._ticks_of((transport,), sizes, first, ticks)[which]

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
        try:
            return np.array(found, dtype=np.int64)
        except OverflowError as error:
            raise PlanCannotRunError(TOO_LONG) from error

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
            return distinct(sizes)
        if (inputs, rings) not in some.parts:
            if rings:
                columns = [self._parts(some, sizes, inputs)[1], some.rings[rings]]
            elif isinstance(some, PlacedProgram):
                columns = [self._parts(some.base, sizes, inputs)[1][some.lane]]
            else:
                columns = input_columns(self.space, some.rows, inputs)
            some.parts[inputs, rings] = distinct([np.zeros_like(some.rows), *columns])
        return some.parts[inputs, rings]

    def _on(self, transport: Transport, nbytes: int, ring: Ring) -> int:
        asked = transport, nbytes, ring
        if asked not in self._on_ring:
            self._on_ring[asked] = to_ticks(self.fabric.seconds(transport, nbytes, ring))
        return self._on_ring[asked]

    @cached_property
    def _dispatched(self) -> Dispatched:
        return Dispatched(self.space, self.fabric.machine)

    def link_ticks(self, grid: Grid, nbytes: int) -> list[int]:
        """The least ticks of a message over each link of a ring of stages."""
        each = (self.rings.of_link(grid, stage) for stage in range(grid.pp))
        return [min(self._on(PLAIN[SEND], nbytes, ring) for ring in rings) for rings in each]

    @cached_property
    def rings(self) -> RingNumbers:
        """The rings of the space's shapes."""
        return RingNumbers(self.space, self.fabric)


def asked_of(op: Op) -> tuple[object, ...]:
    """What the time of a program's op depends on: micro-batches repeat each other."""
    if op.communicates:
        gathered = op.label if op.label in TRADES or op.label in COLLECTIVES else ""
        concerns = Dispatched.concerns(op), gathered
        return op.kind, op.axes, concerns, _bare(op.nbytes)
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
