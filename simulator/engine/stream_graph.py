"""The stream graph of a program: its streams and waits, without sizes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.engine.interference import Interference, interference_of
from workload.dataflow import Waits, waits
from workload.op import ACROSS_STAGES, COMPUTE, NONE, STEP, Op
from workload.sizes.arrays import Flags, Indices
from workload.structure import Structure, memoized_on

Group = tuple[str, ...]


class GraphArrays(NamedTuple):
    """Waits of all ops, and the ops of all streams, one after another; those of op or stream i
    from its offset on."""

    wait_offsets: Indices
    waits: Indices
    stream_offsets: Indices
    stream_ops: Indices


def _flat(lists: Sequence[Sequence[int]]) -> tuple[Indices, Indices]:
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return offsets, np.array([each for own in lists for each in own], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class StreamGraph:
    """Ops, and the ops of other streams that each of them waits for, without their sizes.

    `base` says of which op each is a copy, where only a few layers were written; its own place
    where all were.
    """

    ops: Sequence[Op]
    waits: Sequence[Waits]
    base: Indices
    _known: dict[tuple[str, ...], Interference] = field(default_factory=dict, repr=False)

    @cached_property
    def streams(self) -> list[list[int]]:
        """The ops of each stream, by their places."""
        streams: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            streams.setdefault(op.stream, []).append(index)
        return list(streams.values())

    @cached_property
    def communicates(self) -> list[bool]:
        """Whether each op moves data between ranks."""
        return [op.communicates for op in self.ops]

    @cached_property
    def collectives(self) -> Flags:
        """Which ops are collectives."""
        return np.array([op.is_collective for op in self.ops], dtype=np.bool_)

    @cached_property
    def arrays(self) -> GraphArrays:
        """Waits and streams as arrays."""
        return GraphArrays(*_flat(self.waits), *_flat(self.streams))

    @cached_property
    def groups(self) -> list[Group]:
        """Whom the ops of `meetings` concern: all different groups."""
        return list(dict.fromkeys(self.ops[at].group for at in self.meetings_within))

    @cached_property
    def meetings(self) -> tuple[Indices, Indices]:
        """The ops that meet ranks of the same stage alone, and the group of each, as its place
        among `groups`."""
        number = {group: at for at, group in enumerate(self.groups)}
        which = [number[self.ops[at].group] for at in self.meetings_within]
        return (
            np.array(self.meetings_within, dtype=np.int64),
            np.array(which, dtype=np.int64),
        )

    @cached_property
    def meetings_within(self) -> list[int]:
        """The ops that meet ranks of the same stage alone."""
        across = set(self.meetings_across)
        return [at for at, op in enumerate(self.ops) if op.communicates and at not in across]

    @cached_property
    def meetings_across(self) -> list[int]:
        """The ops that meet ranks of other stages, which issue other ops."""
        return [
            at
            for at, op in enumerate(self.ops)
            if op.is_message or not ACROSS_STAGES.isdisjoint(op.axes)
        ]

    @cached_property
    def compute_ops(self) -> Indices:
        """The places of the ops of the compute stream."""
        return np.array(
            [at for at, op in enumerate(self.ops) if op.stream == COMPUTE], dtype=np.int64
        )

    @cached_property
    def compute_waits(self) -> Indices:
        """What each of these waits for, (compute ops, most waits); NONE behind the last."""
        waits = [self.waits[at] for at in self.compute_ops.tolist()]
        widest = 1 + max(map(len, waits), default=0)
        rows = [[*own, *[NONE] * (widest - len(own))] for own in waits]
        return np.array(rows, dtype=np.int64).reshape(-1, widest)

    @cached_property
    def time_keys(self) -> tuple[list[str], Indices]:
        """What ops' time is reported as, and for each op which of these."""
        known: dict[str, int] = {}
        each = [known.setdefault(_time_key(op), len(known)) for op in self.ops]
        return list(known), np.array(each, dtype=np.int64)

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
        return len({op.stream for op in self.ops if op.is_collective}) > 1

    def interference(self, carry_in: tuple[str, ...]) -> Interference:
        """Which compute runs beside which collectives; on the streams `carry_in` some are in flight
        at the begin."""
        if carry_in not in self._known:
            self._known[carry_in] = interference_of(self.ops, self.waits, carry_in)
        return self._known[carry_in]


def _time_key(op: Op) -> str:
    if op.communicates or op.stream != COMPUTE:
        return op.time_key
    return "optimizer" if op.block == STEP else "compute"


@memoized_on
def graph_of(outline: Structure) -> StreamGraph:
    """All ops of a program."""
    return StreamGraph(outline.ops, outline.waits, np.arange(len(outline.ops)))


@memoized_on
def graph_among(outline: Structure, places: tuple[int, ...]) -> StreamGraph:
    """Some ops of a program by themselves, with what they wait for among themselves."""
    ops = [outline.ops[place] for place in places]
    return StreamGraph(ops, waits(ops), np.arange(len(ops)))
