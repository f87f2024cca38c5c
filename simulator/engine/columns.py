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
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from simulator.engine.core import core
from topologies.records import record
from workload.dataflow import retired_at, waits
from workload.op import COMPUTE, NONE, ROLES, STEP, Block, Op
from workload.sizes.arrays import Bytes, Indices
from workload.structure import Structure, memoized_on

NAMES = "parameters"  # the attribute that says whose operands an op has, and nothing of its time


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

    def with_others(self, others: Mapping[int, Op]) -> Sorts:
        """The sorts with other ops in some places, each of a sort of its own."""
        of_op = self.of_op.copy()
        of_op[list(others)] = len(self.ops) + np.arange(len(others))
        return Sorts([*self.ops, *others.values()], of_op)

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
    return {key: value for key, value in op.attributes.items() if key != NAMES}


def _key(op: Op) -> tuple[object, ...]:
    attributes = tuple(sorted(_but_for_names(op).items()))
    return *_FIELDS(op), len(op.reads), op.block == STEP, attributes


@dataclass(frozen=True, eq=False)
class Columns:
    """Ops by number: their sorts, the buffers that they read and write, their blocks, by the places
    of these in `blocks`, and the slots of blocks (a micro-batch and a work). `block` is NONE for
    what closes the step."""

    ops: Sequence[Op]
    sorts: Sorts
    reads: Lists
    writes: Lists
    buffers: int
    blocks: Sequence[Block]
    block: Indices
    slot: Indices

    def with_others(self, others: Mapping[int, Op]) -> Columns:
        """The columns with ops of other sizes in some places."""
        ops = list(self.ops)
        for at, op in others.items():
            ops[at] = op
        sorts = self.sorts.with_others(others)
        about = self.reads, self.writes, self.buffers, self.blocks, self.block, self.slot
        return Columns(ops, sorts, *about)

    @cached_property
    def flow(self) -> Flow:
        """What all ops wait for, and the lives of all buffers."""
        return self._flow(self.ops, self.sorts.of_op, self.reads, self.writes)

    def waits_among(self, places: Indices) -> Lists:
        """What some of the ops wait for among themselves."""
        ops = self.ops if core is not None else [self.ops[at] for at in places.tolist()]
        operands = self.reads.of_some(places), self.writes.of_some(places)
        return self._flow(ops, self.sorts.of_op[places], *operands).waits

    def _flow(self, ops: Sequence[Op], sort: Indices, reads: Lists, writes: Lists) -> Flow:
        if core is None:
            return flow_of(ops, reads, writes, self.buffers)
        stream, count = self.sorts.stream[sort], len(sort)
        offsets = np.zeros(count + 1, dtype=np.int64)
        places = np.empty(count * len(self.sorts.streams), dtype=np.int64)
        born, gone = (np.full(self.buffers, NONE, dtype=np.int64) for _ in range(2))
        operands = *reads, *writes
        total = core.flow(len(self.sorts.streams), stream, *operands, offsets, places, born, gone)
        return Flow(Lists(offsets, places[:total].copy()), born, gone)


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
    return make_columns(outline.ops, outline.buffers)


def make_columns(ops: Sequence[Op], buffers: Mapping[str, object]) -> Columns:
    """The columns of some ops on these buffers."""
    number = {name: at for at, name in enumerate(buffers)}
    reads, writes = ([getattr(op, way) for op in ops] for way in ("reads", "writes"))
    block, blocks = _blocks(ops)
    slots: dict[tuple[int, str], int] = {}
    each = [slots.setdefault((own.micro_batch, own.work), len(slots)) for own in blocks]
    return Columns(
        ops,
        Sorts.of(ops),
        _operands(reads, number),
        _operands(writes, number),
        len(number),
        blocks,
        np.where([own == STEP for own in blocks], NONE, np.arange(len(blocks)))[block],
        np.array(each, dtype=np.int64)[block],
    )


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


@memoized_on
def lives_of(outline: Structure) -> Lives:
    """The lives of a program's transient buffers."""
    flow = columns_of(outline).flow
    lasting = np.array([buffer.persistent for buffer in outline.buffers.values()], dtype=np.bool_)
    role = np.array([ROLES.index(buffer.role) for buffer in outline.buffers.values()])
    found = []
    for op in (flow.born, flow.gone):
        (buffer,) = np.nonzero((op != NONE) & ~lasting)
        found.append((op[buffer], role[buffer], buffer))
    return Lives(found[0], found[1], len(outline.ops))


def changes_of(outline: Structure, nbytes: Sequence[int]) -> tuple[Bytes, Bytes]:
    """As `Lives.changes`."""
    return lives_of(outline).changes(nbytes)
