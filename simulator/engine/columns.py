"""A program as columns: whole numbers in place of ops, for all that is done once for every op.

Ops that are equal but for names, layer, micro-batch and operands are of one *sort*; what depends on
these fields alone (what an op costs, which stream it is issued on, whom it meets) is worked out
once for each sort, and an op has but the number of its sort. Operands are numbers of buffers,
blocks and slots are numbers too. From these the core finds waits and lives of buffers (`core.c`),
by the rules of `workload/dataflow.py`, which serve themselves where there is no compiled core.

Cost: a microsecond or two for each op, in Python; all that follows is a few nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simulator.engine.core import core
from simulator.engine.interference import FENCE
from topologies.records import record
from workload.dataflow import retired_at, waits
from workload.naming import op_name
from workload.op import COMPUTE, NONE, ROLES, STEP, Block, Buffer, Op, layer_part
from workload.pipeline.schedule import Slot
from workload.sizes.arrays import Bytes, Flags, Indices
from workload.structure import Structure, memoized_on

# Attributes that say whose operands an op has, and nothing of its time.
NAMES = ("parameters", "place", "shares")


Found = TypeVar("Found")


class Lists(NamedTuple):
    """Lists of places one after another, that of number i from `offsets[i]` on."""

    offsets: Indices
    places: Indices

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Lists:
        """The lists as arrays."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(offsets, np.array([each for own in lists for each in own], dtype=np.int64))

    def of_one(self, number: int) -> list[int]:
        """One of the lists."""
        own: list[int] = self.places[self.offsets[number] : self.offsets[number + 1]].tolist()
        return own

    def of_some(self, which: Indices) -> Lists:
        """Some of the lists."""
        first, counts = self.offsets[which], np.diff(self.offsets)[which]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        return Lists(offsets, self.places[at])

    @property
    def owners(self) -> Indices:
        """For each place the number of its list."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def lists(self) -> list[tuple[int, ...]]:
        """The arrays as lists."""
        flat, bounds = self.places.tolist(), self.offsets.tolist()
        return [tuple(flat[a:b]) for a, b in pairwise(bounds)]


class Flow(NamedTuple):
    """What each op waits for; and by buffer the op that first writes it, and the op behind which
    nobody needs it, NONE where there is none."""

    waits: Lists
    born: Indices
    gone: Indices


@dataclass(frozen=True, eq=False)
class Sorts:
    """The different sorts of some ops, by an op of each, and the sort of every op."""

    ops: Sequence[Op]
    of_op: Indices
    _known: dict[Callable[[Any], Any], Any] = field(default_factory=dict, repr=False)

    def found(self, finds: Callable[[Sorts], Found]) -> Found:
        """What a function finds out about the sorts, which is kept."""
        if finds not in self._known:
            self._known[finds] = finds(self)
        known: Found = self._known[finds]
        return known

    @classmethod
    def of(cls, ops: Sequence[Op]) -> Sorts:
        """The sorts of these ops."""
        known: dict[tuple[object, ...], list[int]] = {}
        distinct, numbers = list[Op](), list[int]()
        for op in ops:
            key = *_FIELDS(op), len(op.reads)
            alike = known.get(key)
            if alike is None:
                alike = known[key] = []
            for number in alike:
                other = distinct[number]
                if (op.attributes is other.attributes and op.block.phase) or _are_alike(op, other):
                    break
            else:
                number = len(distinct)
                alike.append(number)
                distinct.append(op)
            numbers.append(number)
        return cls(distinct, np.array(numbers, dtype=np.int64))

    def numbers(self, number: Callable[[Op], int]) -> Indices:
        """A number for each sort."""
        return np.array([number(op) for op in self.ops], dtype=np.int64)

    @cached_property
    def streams(self) -> list[str]:
        """The streams, that of compute first."""
        return list(dict.fromkeys([COMPUTE, *(op.stream for op in self.ops)]))

    @cached_property
    def stream(self) -> Indices:
        """The number of each sort's stream."""
        number = {stream: at for at, stream in enumerate(self.streams)}
        return self.numbers(lambda op: number[op.stream])

    def flags(self, holds: Callable[[Op], bool]) -> Flags:
        """For each sort whether something holds."""
        return np.array([holds(op) for op in self.ops], dtype=np.bool_)

    @cached_property
    def same_but_layer(self) -> Indices:
        """A number for each sort, equal where ops differ in micro-batch, layer and sizes alone."""
        known: dict[object, int] = {}
        return self.numbers(lambda op: known.setdefault(_but_for_layer(op), len(known)))

    @cached_property
    def collectives(self) -> tuple[list[Op], Indices]:
        """An op of each sort of collectives that take equally long under equal conditions; and by
        sort which of these it is, NONE of others."""
        known: dict[tuple[object, ...], int] = {}
        ops = list[Op]()

        def number(op: Op) -> int:
            if not op.is_collective:
                return NONE
            found = known.setdefault((op.transport, op.axes, op.nbytes), len(ops))
            if found == len(ops):
                ops.append(op)
            return found

        numbers = self.numbers(number)
        return ops, numbers

    @cached_property
    def keys(self) -> list[tuple[object, ...]]:
        """By sort, what is equal for equal sorts of other programs."""
        return [_key(op) for op in self.ops]


_FIELDS = attrgetter(
    *("label", "kind", "nbytes", "flops", "stream", "axes", "dtype", "replicas", "launches"),
    *("purpose", "module", "part.kind", "block.phase", "block.part.kind", "block.deferred"),
)


def _are_alike(one: Op, other: Op) -> bool:
    """Whether two ops of equal fields have equal attributes, and both close the step or neither."""
    if one.attributes != other.attributes and _but_for_names(one) != _but_for_names(other):
        return False
    return bool(one.block.phase) or (one.block == STEP) == (other.block == STEP)


def _but_for_names(op: Op) -> dict[str, Any]:
    return {key: value for key, value in op.attributes.items() if key not in NAMES}


def _but_for_layer(op: Op) -> object:
    _, part, again, label = op.identity
    return part.kind, again, label, op.kind, op.stream, op.axes, op.block.work


def _key(op: Op) -> tuple[object, ...]:
    attributes = tuple(sorted(_but_for_names(op).items()))
    return *_FIELDS(op), len(op.reads), op.block == STEP, attributes


@dataclass(frozen=True, eq=False)
class Columns:
    """Ops and buffers by number.

    Of the `ops` that are lowered and the `buffers` each may stand for several, as layers repeat
    (`cut.py`): `source` says for every op which it is, `buffer` the same of every buffer. `layer`
    and `micro_batch` are those that an op works for, `buffer_layers` those of buffers, NONE where
    there is none; `reads` and `writes` have buffers. What makes the buffers that are `unmade` is
    not among the ops. Blocks are numbered, and NONE stands for what closes the step; `block_kinds`
    are equal for those that differ in their layer alone, which `block_layers` has. `slot` is a
    number for each micro-batch and work; `of_slot` says for ops of a slot of the schedule which of
    `slots` it is, NONE for messages and for what closes the step.
    """

    ops: Sequence[Op]
    buffers: Sequence[Buffer]
    sorts: Sorts
    source: Indices
    layer: Indices
    micro_batch: Indices
    reads: Lists
    writes: Lists
    buffer: Indices
    buffer_layers: Indices
    unmade: Flags
    block: Indices
    block_kinds: Indices
    block_layers: Indices
    slot: Indices
    slots: Sequence[Slot]
    of_slot: Indices

    @property
    def count(self) -> int:
        """How many ops there are."""
        return len(self.source)

    @cached_property
    def sort(self) -> Indices:
        """The sort of each op."""
        return self.sorts.of_op[self.source]

    @cached_property
    def stream(self) -> Indices:
        """The number of each op's stream, 0 for that of compute."""
        return self.sorts.stream[self.sort]

    @cached_property
    def same_but_layer(self) -> Indices:
        """A number for each op, equal for those that differ in micro-batch and layer alone."""
        return self.sorts.same_but_layer[self.sort]

    @cached_property
    def lasting(self) -> Flags:
        """Which buffers are there before and after the step."""
        each = np.array([own.persistent for own in self.buffers], dtype=np.bool_)
        return each[self.buffer]

    @cached_property
    def of_layers(self) -> Flags:
        """Which buffers belong to a layer's parameters: these, gradients, states."""
        each = np.array([own.part.is_layer for own in self.buffers], dtype=np.bool_)
        return each[self.buffer]

    @cached_property
    def first_written(self) -> tuple[Indices, Indices]:
        """By buffer the op that first writes it, NONE if there is none, and its place among what
        that writes."""
        owner = self.writes.owners[::-1]
        found, place = (np.full(len(self.buffer), NONE, dtype=np.int64) for _ in range(2))
        found[self.writes.places[::-1]] = owner
        place[self.writes.places[::-1]] = np.arange(len(owner))[::-1] - self.writes.offsets[owner]
        return found, place

    @cached_property
    def flow(self) -> Flow:
        """What all ops wait for, and the lives of all buffers."""
        return self._flow(self.source, self.reads, self.writes)

    def waits_among(self, places: Indices) -> Lists:
        """What some of the ops wait for among themselves."""
        operands = self.reads.of_some(places), self.writes.of_some(places)
        return self._flow(self.source[places], *operands).waits

    def _flow(self, source: Indices, reads: Lists, writes: Lists) -> Flow:
        if core is None:
            ops = [self.ops[at] for at in source.tolist()]
            return flow_of(ops, reads, writes, len(self.buffer))
        stream, count = self.sorts.stream[self.sorts.of_op[source]], len(source)
        offsets = np.zeros(count + 1, dtype=np.int64)
        places = np.empty(count * len(self.sorts.streams), dtype=np.int64)
        born, gone = (np.full(len(self.buffer), NONE, dtype=np.int64) for _ in range(2))
        operands = *reads, *writes
        total = core.flow(len(self.sorts.streams), stream, *operands, offsets, places, born, gone)
        return Flow(Lists(offsets, places[:total].copy()), born, gone)

    @cached_property
    def lives(self) -> Lives:
        """The lives of transient buffers."""
        role = np.array([ROLES.index(own.role) for own in self.buffers], dtype=np.int64)
        gone = (self.flow.gone != NONE) & ~self.lasting
        born = (self.flow.born != NONE) & ~self.lasting & ~np.asarray(self.unmade)
        found = []
        for op, those in ((self.flow.born, born), (self.flow.gone, gone)):
            (number,) = np.nonzero(those)
            found.append((op[number], role[self.buffer[number]], self.buffer[number]))
        return Lives(found[0], found[1], self.count)

    def persistent(self, nbytes: Sequence[int]) -> Bytes:
        """Bytes by role, (roles,), that are there all the time, given the sizes of `buffers`."""
        level = np.zeros(len(ROLES), dtype=np.int64)
        for own, each in zip(self.buffers, nbytes, strict=True):
            if own.persistent:
                level[ROLES.index(own.role)] += own.count * each
        return level

    def inputs(self, nbytes: Sequence[int]) -> Bytes:
        """Bytes by role, (roles,), that are there all the time for each micro-batch: its tokens."""
        level = np.zeros(len(ROLES), dtype=np.int64)
        for own, each in zip(self.buffers, nbytes, strict=True):
            if own.persistent and own.micro_batch == 0:
                level[ROLES.index(own.role)] += each
        return level

    def name(self, at: int, later: int = 0) -> str:
        """The name of an op, or of the same so many micro-batches later."""
        op, m, layer = self.ops[self.source[at]], int(self.micro_batch[at]), int(self.layer[at])
        part = layer_part(layer) if layer >= 0 else op.part
        number = m + later if m >= 0 else NONE
        return op_name(number, part, op.label, recomputed=op.identity[2])


def flow_of(ops: Sequence[Op], reads: Lists, writes: Lists, buffers: int) -> Flow:
    """The flow of some ops, which read and write these buffers by number."""
    awaited = waits(ops)
    retired = retired_at(ops, awaited)
    born, gone = (np.full(buffers, NONE, dtype=np.int64) for _ in range(2))
    pairs = zip(reads.lists, writes.lists, strict=True)
    for op, (read, written) in enumerate(pairs):
        for buffer in (*read, *written):
            gone[buffer] = max(gone[buffer], retired[op])
        for buffer in written:
            born[buffer] = op if born[buffer] == NONE else born[buffer]
    return Flow(Lists.of(awaited), born, gone)


@memoized_on
def columns_of(outline: Structure) -> Columns:
    """The columns of a program."""
    return make_columns(outline.ops, outline.buffers, outline.slot_of)


def make_columns(
    ops: Sequence[Op],
    buffers: Mapping[str, Buffer],
    slot_of: Mapping[Block, Slot] = MappingProxyType({}),
) -> Columns:
    """The columns of some ops on these buffers, whose blocks are of these slots."""
    number = {name: at for at, name in enumerate(buffers)}
    reads, writes = ([getattr(op, way) for op in ops] for way in ("reads", "writes"))
    block, blocks = _blocks(ops)
    slots: dict[tuple[int, str], int] = {}
    each = [slots.setdefault((own.micro_batch, own.work), len(slots)) for own in blocks]
    alike = [own._replace(part=own.part._replace(layer=NONE)) for own in blocks]
    kinds: dict[Block, int] = {}
    number_of = {slot: at for at, slot in enumerate(dict.fromkeys(slot_of.values()))}
    of_block = (slot_of.get(own) for own in blocks)
    of_slot = np.array([NONE if slot is None else number_of[slot] for slot in of_block])[block]
    sorts = Sorts.of(ops)
    apart = np.array([own.chunk != NONE for own in blocks])[block]
    message, fence = (
        sorts.flags(holds)[sorts.of_op]
        for holds in (lambda op: op.is_message, lambda op: op.kind == FENCE)
    )
    found = Columns(
        ops,
        list(buffers.values()),
        sorts,
        source=np.arange(len(ops), dtype=np.int64),
        layer=np.array([op.part.layer for op in ops], dtype=np.int64),
        micro_batch=np.array([op.micro_batch for op in ops], dtype=np.int64),
        reads=_operands(reads, number),
        writes=_operands(writes, number),
        buffer=np.arange(len(number), dtype=np.int64),
        buffer_layers=np.array([own.part.layer for own in buffers.values()], dtype=np.int64),
        unmade=np.zeros(len(number), dtype=np.bool_),
        block=np.where([own == STEP for own in blocks], NONE, np.arange(len(blocks)))[block],
        block_kinds=np.array([kinds.setdefault(own, len(kinds)) for own in alike], dtype=np.int64),
        block_layers=np.array([own.part.layer for own in blocks], dtype=np.int64),
        slot=np.array(each, dtype=np.int64)[block],
        slots=list(number_of),
        of_slot=np.where(message | (fence & apart), NONE, of_slot),  # `is_between_slots`
    )
    born, _ = found.first_written
    own = (found.buffer_layers == NONE) & (born != NONE) & ~found.lasting
    layers = found.buffer_layers.copy()
    layers[own] = found.layer[born[own]]
    return replace(found, buffer_layers=layers)


def _operands(names: Sequence[Sequence[str]], number: Mapping[str, int]) -> Lists:
    offsets = np.cumsum([0, *map(len, names)], dtype=np.int64)
    flat = list(map(number.__getitem__, chain.from_iterable(names)))
    return Lists(offsets, np.array(flat, dtype=np.int64))


def _blocks(ops: Sequence[Op]) -> tuple[Indices, list[Block]]:
    """The block of each op by number, and all blocks."""
    known: dict[Block, int] = {}
    numbers, last, number = list[int](), STEP, known.setdefault(STEP, 0)
    for op in ops:
        if op.block is not last:  # mostly it is
            last = op.block
            number = known.setdefault(last, len(known))
        numbers.append(number)
    return np.array(numbers, dtype=np.int64), list(known)


@record(slots=False)
class Lives:
    """The transient buffers of a program: the op at which each comes, the op behind which it is
    free, its role and its number."""

    born: tuple[Indices, Indices, Indices]
    gone: tuple[Indices, Indices, Indices]
    ops: int

    def changes(self, nbytes: Sequence[int]) -> tuple[Bytes, Bytes]:
        """Bytes by role, (roles, ops), that come with each op, and that are free after it, given
        the sizes of all buffers; those left out that are there all the time."""
        sizes = np.array(nbytes, dtype=np.int64)
        found = []
        for op, role, buffer in (self.born, self.gone):
            changes = np.zeros((len(ROLES), self.ops), dtype=np.int64)
            np.add.at(changes, (role, op), sizes[buffer])
            found.append(changes)
        return found[0], found[1]
