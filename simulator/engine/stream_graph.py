"""The stream graph of a program: its streams and waits, without sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulator.engine.interference import Interference, interference_of
from workload.dataflow import Waits, waits
from workload.op import Op
from workload.structure import Structure, memoized_on


@dataclass(frozen=True, eq=False)
class StreamGraph:
    """Ops, and the ops of other streams that each of them waits for, without their sizes."""

    ops: Sequence[Op]
    waits: Sequence[Waits]
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
    def can_overlap(self) -> bool:
        """Whether a rank may have several collectives in flight at once."""
        return len({op.stream for op in self.ops if op.is_collective}) > 1

    def interference(self, carry_in: tuple[str, ...]) -> Interference:
        """Which compute runs beside which collectives; on the streams `carry_in` some are in flight
        at the begin."""
        if carry_in not in self._known:
            self._known[carry_in] = interference_of(self.ops, self.waits, carry_in)
        return self._known[carry_in]


@memoized_on
def graph_of(outline: Structure) -> StreamGraph:
    """All ops of a program."""
    return StreamGraph(outline.ops, outline.waits)


@memoized_on
def graph_among(outline: Structure, places: tuple[int, ...]) -> StreamGraph:
    """Some ops of a program by themselves, with what they wait for among themselves."""
    ops = [outline.ops[place] for place in places]
    return StreamGraph(ops, waits(ops))
