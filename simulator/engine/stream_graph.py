"""The stream graph of a program: its streams and waits, without sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.engine.interference import Interference, interference_of
from workload.dataflow import Waits, waits
from workload.op import ACROSS_STAGES, COMPUTE, NONE, STEP, Op
from workload.sizes.arrays import Flags, Indices
from workload.sizes.equal_ops import EqualOps, equal_ops
from workload.structure import Structure, memoized_on

Group = tuple[str, ...]
PIPE = "pp"  # what waiting for other stages is reported as
HOST = "host"  # and waiting for the host that issues kernels


class Lists(NamedTuple):
    """Lists of places one after another, that of number i from `offsets[i]` on."""

    offsets: Indices
    places: Indices

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Lists:
        """The lists as arrays."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(offsets, np.array([each for own in lists for each in own], dtype=np.int64))

    @property
    def lists(self) -> list[tuple[int, ...]]:
        """The arrays as lists."""
        flat, bounds = self.places.tolist(), self.offsets.tolist()
        return [tuple(flat[a:b]) for a, b in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class StreamGraph:
    """Ops, and the ops of other streams that each of them waits for, without their sizes.

    Of the ops that are written, `written`, each may stand for several: `base` says for every op
    which it is, `shift` how many layers further on. `awaited` are what each op waits for.
    """

    written: Sequence[Op]
    base: Indices
    shift: Indices
    awaited: Lists
    _known: dict[tuple[str, ...], Interference] = field(default_factory=dict, repr=False)

    @cached_property
    def ops(self) -> list[Op]:
        """All ops, of which copies have the names of what they are copies of."""
        return [self.written[at] for at in self.base.tolist()]

    @cached_property
    def waits(self) -> list[Waits]:
        """For each op the ops that it waits for."""
        return self.awaited.lists

    @cached_property
    def equal(self) -> EqualOps:
        """Which of the ops that are written are equal in kind and sizes."""
        return equal_ops(self.written)

    @cached_property
    def issued_alike(self) -> EqualOps:
        """Which of these have one label too: a host may issue a part of them in a graph."""
        known: dict[tuple[int, str], int] = {}
        each = zip(self.equal.sort.tolist(), self.written, strict=True)
        alike = [known.setdefault((sort, op.label), len(known)) for sort, op in each]
        numbers, first = np.unique(np.array(alike, dtype=np.int64), return_index=True)
        assert len(numbers) == len(known)
        return EqualOps(first.astype(np.int64), np.array(alike, dtype=np.int64))

    def _of_each(self, number: Callable[[Op], int]) -> Indices:
        """A number for every op."""
        return np.array([number(op) for op in self.written], dtype=np.int64)[self.base]

    @cached_property
    def streams(self) -> list[list[int]]:
        """The ops of each stream, by their places."""
        known: dict[str, int] = {}
        stream = self._of_each(lambda op: known.setdefault(op.stream, len(known)))
        return [np.flatnonzero(stream == number).tolist() for number in known.values()]

    @cached_property
    def stream_ops(self) -> Lists:
        """The same as arrays."""
        return Lists.of(self.streams)

    @cached_property
    def communicates(self) -> list[bool]:
        """Whether each op moves data between ranks."""
        each: list[int] = self._of_each(lambda op: op.communicates).tolist()
        return list(map(bool, each))

    @cached_property
    def collectives(self) -> Flags:
        """Which ops are collectives."""
        return self._of_each(lambda op: op.is_collective).astype(np.bool_)

    @cached_property
    def meets_within(self) -> Flags:
        """Which ops meet ranks of their own stage alone."""
        return self._of_each(_meets_within).astype(np.bool_)

    @cached_property
    def groups(self) -> list[Group]:
        """Whom the ops of `meetings` concern: all different groups."""
        return list(dict.fromkeys(op.traffic for op in self.written if _meets_within(op)))

    @cached_property
    def meetings(self) -> tuple[Indices, Indices]:
        """The ops that meet ranks of the same stage alone, and the group of each, as its place
        among `groups`."""
        number = {group: at for at, group in enumerate(self.groups)}
        which = self._of_each(lambda op: number[op.traffic] if _meets_within(op) else NONE)
        places = np.flatnonzero(which != NONE)
        return places, which[places]

    @cached_property
    def meetings_across(self) -> list[int]:
        """The ops that meet ranks of other stages, which issue other ops."""
        across = self._of_each(lambda op: op.communicates and not _meets_within(op))
        return np.flatnonzero(across).tolist()

    @cached_property
    def compute_ops(self) -> Indices:
        """The places of the ops of the compute stream."""
        return np.flatnonzero(self._of_each(lambda op: op.stream == COMPUTE))

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
        known = {PIPE: 0, HOST: 1}
        each = self._of_each(lambda op: known.setdefault(_time_key(op), len(known)))
        return list(known), each

    def meeting(self, index: int) -> Hashable:
        """What members of its group know a collective or message by: a message by its tag, a copy
        by its place, which is the same for all that issue the same ops, anything else by name."""
        op = self.ops[index]
        if op.is_message:
            tag: Hashable = op.attributes["tag"]
            return tag
        return op.name if self.base[index] == index else index

    @cached_property
    def can_overlap(self) -> bool:
        """Whether a rank may have several collectives in flight at once."""
        return len({op.stream for op in self.written if op.is_collective}) > 1

    def interference(self, carry_in: tuple[str, ...]) -> Interference:
        """Which compute runs beside which collectives; on the streams `carry_in` some are in flight
        at the begin."""
        if carry_in not in self._known:
            self._known[carry_in] = interference_of(self.ops, self.waits, carry_in)
        return self._known[carry_in]


def _meets_within(op: Op) -> bool:
    """Whether an op meets ranks of its own stage alone."""
    return op.is_collective and ACROSS_STAGES.isdisjoint(op.axes)


def _time_key(op: Op) -> str:
    if op.communicates or op.stream != COMPUTE:
        return op.time_key
    return "optimizer" if op.block == STEP else "compute"


@memoized_on
def graph_of(outline: Structure) -> StreamGraph:
    """All ops of a program."""
    return _plain(outline.ops, outline.waits)


@memoized_on
def graph_among(outline: Structure, places: tuple[int, ...]) -> StreamGraph:
    """Some ops of a program by themselves, with what they wait for among themselves."""
    ops = [outline.ops[place] for place in places]
    return _plain(ops, waits(ops))


def _plain(ops: Sequence[Op], waits_of: Sequence[Waits]) -> StreamGraph:
    """A graph in which each op stands for itself."""
    own = np.arange(len(ops), dtype=np.int64)
    return StreamGraph(ops, own, np.zeros_like(own), Lists.of(waits_of))
