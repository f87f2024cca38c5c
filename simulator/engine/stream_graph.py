"""The stream graph of a program: its streams and waits, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.costs.kernel_launch import is_awaited, is_issued
from simulator.engine.columns import Columns, Lists, Sorts, columns_of
from simulator.engine.core import core
from simulator.engine.interference import FENCE, Interference, OverlapWindow, interference_of
from workload.dataflow import Waits
from workload.op import ACROSS_STAGES, COMPUTE, NONE, STEP, Op
from workload.sizes.arrays import Counts, Flags, Indices
from workload.structure import Structure, memoized_on

Group = tuple[str, ...]
Number = TypeVar("Number", np.int64, np.bool_)
PIPE = "pp"  # what waiting for other stages is reported as
HOST = "host"  # and waiting for the host that issues kernels
IS_COMPUTE, IS_COLLECTIVE = 1, 2  # bits of `_beside`
IS_ISSUED, IS_AWAITED, COMMUNICATES = 1, 2, 4  # and of `issuing`


class Totals(NamedTuple):
    """How many ops a rank issues, the payload of its collectives by axes, and the FLOPs of all
    ranks: of the model, and with what is computed beyond it."""

    ops: int
    payload: dict[str, int]
    model_flops: int
    flops: int


@dataclass(frozen=True, eq=False)
class StreamGraph:
    """Ops, and the ops of other streams that each of them waits for.

    They are those of `columns` at some `places`; `awaited` are what each op waits for.
    """

    columns: Columns
    places: Indices
    awaited: Lists
    _known: dict[tuple[str, ...], Interference] = field(default_factory=dict, repr=False)

    @cached_property
    def source(self) -> Indices:
        """Which of the ops that are lowered each is, or stands for it."""
        return self.columns.source[self.places]

    @cached_property
    def ops(self) -> list[Op]:
        """All ops, those that stand for others with their own names."""
        return [self.columns.ops[at] for at in self.source.tolist()]

    def op(self, index: int) -> Op:
        """One of the ops."""
        return self.columns.ops[int(self.source[index])]

    @cached_property
    def waits(self) -> list[Waits]:
        """For each op the ops that it waits for."""
        return self.awaited.lists

    @cached_property
    def sort(self) -> Indices:
        """The sort of each op."""
        return self.columns.sort[self.places]

    def key(self, numbers: Indices) -> tuple[bytes, ...]:
        """Equal for graphs that behave alike on the same ranks, whosever they are: `numbers` has a
        number for each sort, equal for equal sorts."""
        columns = self.columns
        about = numbers[self.sort], *self.awaited
        runs = (_runs(each[self.places]) for each in (columns.block, columns.slot))
        return tuple(each.tobytes() for each in (*about, *runs))

    def totals(self, ranks: int, copies: Counts | None = None) -> Totals:
        """What so many ranks do all together, where op i stands for `copies[i]` ops."""
        ops, model, further, payload = 0, 0, 0, dict[str, int]()
        each = np.ones(len(self.sort), dtype=np.int64) if copies is None else copies
        for op, count in self._counted(each):
            ops += count
            if op.communicates:
                payload[op.time_key] = payload.get(op.time_key, 0) + count * op.nbytes
            flops = count * (op.flops * ranks // op.replicas)
            model += 0 if op.is_beyond_model else flops
            further += flops if op.is_beyond_model else 0
        return Totals(ops, payload, model, model + further)

    def _counted(self, copies: Counts) -> list[tuple[Op, int]]:
        """An op of each sort that there is, and how many are of it, the first one foremost."""
        used, first = np.unique(self.sort, return_index=True)
        counts = np.zeros(len(self.columns.sorts.ops), dtype=np.int64)
        np.add.at(counts, self.sort, copies)
        order = used[np.argsort(first)].tolist()
        return [(self.columns.sorts.ops[number], int(counts[number])) for number in order]

    def _by_sort(self, numbers: Callable[[Sorts], NDArray[Number]]) -> NDArray[Number]:
        """A number for every op, given one for each sort."""
        return self.columns.sorts.found(numbers)[self.sort]

    @cached_property
    def stream(self) -> Indices:
        """The number of each op's stream, 0 for that of compute."""
        return self.columns.sorts.stream[self.sort]

    @cached_property
    def streams(self) -> list[list[int]]:
        """The ops of each stream, by their places."""
        return [list(own) for own in self.stream_ops.lists]

    @cached_property
    def stream_ops(self) -> Lists:
        """The ops of each stream, by their places, as arrays; a stream without ops is left out."""
        order = np.argsort(self.stream, kind="stable")
        counts = np.bincount(self.stream)
        return Lists(np.concatenate([[0], np.cumsum(counts[counts > 0])]), order)

    @cached_property
    def communicates(self) -> list[bool]:
        """Whether each op moves data between ranks."""
        each: list[bool] = self._by_sort(_communicates).tolist()
        return each

    @cached_property
    def collectives(self) -> Flags:
        """Which ops are collectives."""
        return self._by_sort(_is_collective)

    @cached_property
    def meets_within(self) -> Flags:
        """Which ops meet ranks of their own stage alone."""
        return self._by_sort(_meets_within)

    @cached_property
    def groups(self) -> list[Group]:
        """Whom the ops of `meetings` concern: all different groups."""
        return self.columns.sorts.found(_groups)

    @cached_property
    def meetings(self) -> tuple[Indices, Indices]:
        """The ops that meet ranks of the same stage alone, and the group of each, as its place
        among `groups`."""
        which = self._by_sort(_group_numbers)
        places = np.flatnonzero(which != NONE)
        return places, which[places]

    @cached_property
    def meetings_across(self) -> list[int]:
        """The ops that meet ranks of other stages, which issue other ops."""
        found = np.flatnonzero(self._by_sort(_communicates) & ~self.meets_within)
        across: list[int] = found.tolist()
        return across

    @cached_property
    def compute_ops(self) -> Indices:
        """The places of the ops of the compute stream."""
        return np.flatnonzero(self.stream == 0)

    @cached_property
    def compute_waits(self) -> Indices:
        """What each of these waits for, (compute ops, most waits); NONE behind the last."""
        first = self.awaited.offsets[self.compute_ops]
        counts = self.awaited.offsets[self.compute_ops + 1] - first
        column = np.arange(1 + int(counts.max(initial=0)))
        there = column < counts[:, None]
        found = np.full(there.shape, NONE, dtype=np.int64)
        found[there] = self.awaited.places[(first[:, None] + column)[there]]
        return found

    @cached_property
    def time_keys(self) -> tuple[list[str], Indices]:
        """What ops' time is reported as, or time that no op of this rank takes, as `PIPE` and
        `HOST`; and for each op which of these."""
        keys, each = self.columns.sorts.found(_time_keys)
        return keys, each[self.sort]

    def meeting(self, index: int) -> Hashable:
        """What members of its group know a collective or message by: a message by its tag, a
        collective by its place among these ops, which all of a stage issue, or by its name where it
        meets other stages."""
        op = self.op(index)
        if op.is_message:
            return op.attributes["tag"]
        return index if meets_within(op) else op.name

    @cached_property
    def can_overlap(self) -> bool:
        """Whether a rank may have several collectives in flight at once."""
        return len(set(self.stream[self.collectives].tolist())) > 1

    @cached_property
    def issued_blocks(self) -> Indices:
        """By op the number of the block that the host issues it in, NONE for what closes the
        step."""
        return self.columns.block[self.places]

    @cached_property
    def issuing(self) -> Indices:
        """By op, as bits: whether the host issues it, waits before it, and whether it
        communicates."""
        return self._by_sort(_issuing)

    @cached_property
    def _beside(self) -> Indices:
        """By op, as bits: whether it is compute that collectives slow, and such a collective."""
        return self._by_sort(_beside)

    def interference(self, carry_in: tuple[str, ...]) -> Interference:
        """Which compute runs beside which collectives; on the streams `carry_in` some are in flight
        at the begin."""
        if carry_in not in self._known:
            self._known[carry_in] = self._interference(carry_in)
        return self._known[carry_in]

    def _interference(self, carry_in: tuple[str, ...]) -> Interference:
        if core is None:
            return interference_of(self.ops, self.waits, carry_in)
        streams = self.columns.sorts.streams
        known = dict.fromkeys([*streams, *carry_in])
        number = {stream: at for at, stream in enumerate(known)}
        carrying = np.array([number[stream] for stream in carry_in], dtype=np.int64)
        slot = self.columns.slot[self.places]
        found = core.windows(len(number), self.stream, self._beside, slot, *self.awaited, carrying)
        names = list(number)
        beside, unmatched = (
            [
                OverlapWindow(names[stream], members, bool(carries), first, last)
                for stream, first, last, carries, *members in rows
            ]
            for rows in found
        )
        return Interference(
            beside, unmatched, (self._beside & IS_COMPUTE).astype(np.bool_).tolist()
        )


def _runs(numbers: Indices) -> Indices:
    """Numbers by the order in which they come, NONE as it is."""
    different, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))
    return np.asarray(np.where(different == NONE, NONE, place)[which], dtype=np.int64)


def meets_within(op: Op) -> bool:
    """Whether an op meets ranks of its own stage alone."""
    return op.is_collective and ACROSS_STAGES.isdisjoint(op.axes)


def _meets_within(sorts: Sorts) -> Flags:
    return sorts.flags(meets_within)


def _is_collective(sorts: Sorts) -> Flags:
    return sorts.flags(lambda op: op.is_collective)


def _communicates(sorts: Sorts) -> Flags:
    return sorts.flags(lambda op: op.communicates)


def _groups(sorts: Sorts) -> list[Group]:
    return list(dict.fromkeys(op.traffic for op in sorts.ops if meets_within(op)))


def _group_numbers(sorts: Sorts) -> Indices:
    number = {group: at for at, group in enumerate(sorts.found(_groups))}
    return sorts.numbers(lambda op: number[op.traffic] if meets_within(op) else NONE)


def _time_keys(sorts: Sorts) -> tuple[list[str], Indices]:
    known = {PIPE: 0, HOST: 1}
    each = sorts.numbers(lambda op: known.setdefault(_time_key(op), len(known)))
    return list(known), each


def _issuing(sorts: Sorts) -> Indices:
    return sorts.numbers(
        lambda op: (
            IS_ISSUED * is_issued(op) + IS_AWAITED * is_awaited(op) + COMMUNICATES * op.communicates
        )
    )


def _beside(sorts: Sorts) -> Indices:
    return sorts.numbers(
        lambda op: (
            IS_COMPUTE * (not op.communicates and op.stream == COMPUTE and op.kind != FENCE)
            + IS_COLLECTIVE * op.is_collective
        )
    )


def _time_key(op: Op) -> str:
    if op.communicates or op.stream != COMPUTE:
        return op.time_key
    return "optimizer" if op.block == STEP else "compute"


@memoized_on
def graph_of(outline: Structure) -> StreamGraph:
    """All ops of a program."""
    columns = columns_of(outline)
    return graph_of_all(columns)


def graph_of_all(columns: Columns) -> StreamGraph:
    """All ops of some columns."""
    every = np.arange(columns.count, dtype=np.int64)
    return StreamGraph(columns, every, columns.flow.waits)


def graph_among(columns: Columns, places: Indices) -> StreamGraph:
    """Some ops by themselves, with what they wait for among themselves."""
    return StreamGraph(columns, places, columns.waits_among(places))
