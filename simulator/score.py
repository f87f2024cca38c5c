"""What is performed, whatever its sizes: ops in issue order, on which streams, beside what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulator.beside import Beside, beside_of
from workload.dataflow import Waits, waits
from workload.op import Op
from workload.outline import Outline, noted


@dataclass(frozen=True, eq=False)
class Score:
    """Ops with what each of them waits for on other streams; their sizes are not looked at."""

    ops: Sequence[Op]
    waits: Sequence[Waits]
    _known: dict[tuple[str, ...], Beside] = field(default_factory=dict, repr=False)

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

    def beside(self, due: tuple[str, ...]) -> Beside:
        """What runs beside what, with collectives under way at the begin on the streams `due`."""
        if due not in self._known:
            self._known[due] = beside_of(self.ops, self.waits, due)
        return self._known[due]


@noted
def score_of(outline: Outline) -> Score:
    """All ops of a program."""
    return Score(outline.ops, outline.waits)


@noted
def score_among(outline: Outline, places: tuple[int, ...]) -> Score:
    """Some ops of a program by themselves, with what they wait for among themselves."""
    ops = [outline.ops[place] for place in places]
    return Score(ops, waits(ops))
