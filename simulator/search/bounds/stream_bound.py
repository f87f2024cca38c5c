"""What a plan takes at least, from what its slots take at least.

A stage takes at least the sum of its slots and of what follows them. Before its first slot the
stages ahead of it run theirs, and after its last backward pass they run theirs again. Left out, so
that a bound stays one: messages, and what else stages wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.search.bounds.batched_programs import BatchedProgram, adds_to_tied
from simulator.search.bounds.op_bounds import OpBounds
from workload.op import (
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    COMPUTE,
    MODEL,
    STEP,
    Op,
)
from workload.passes.table import switch_of
from workload.plan import CHOICES

Ints = NDArray[np.int64]
SCHEDULES = CHOICES["schedule"]
WORK = ("forward", "backward", "weight")
HELD = "held"
Ledger = Mapping[tuple[str, str, bool], Mapping[tuple[str, str], Ints]]


@dataclass(frozen=True)
class ModelEnds:
    """Whether the model begins or ends in a chunk."""

    first: bool = False
    last: bool = False

    @property
    def alone(self) -> bool:
        """Whether it is the whole model."""
        return self.first and self.last

    @property
    def parts(self) -> list[str]:
        """The parts of the model that a chunk has beside layers."""
        return [*(["embed"] if self.first else []), *(["head"] if self.last else [])]


@dataclass(frozen=True)
class Entries:
    """Plans to be bounded: `lane` says which row of some each one is, `schedule` its place among
    the schedules, `chunk` how many layers each of its `interleave` chunks has. Either all or none
    have a pipeline, and either all or none of them split backward passes."""

    lane: Ints
    pipe: Ints
    micro_batches: Ints
    schedule: Ints
    interleave: Ints
    chunk: Ints

    @property
    def works(self) -> Sequence[str]:
        """What slots there are."""
        return WORK if SCHEDULES[int(self.schedule[0])].startswith("zb") else WORK[:2]

    def only(self, keep: NDArray[np.bool_] | Ints, lane: Ints) -> Entries:
        """Some of them, for rows that are in other places."""
        columns = (self.pipe, self.micro_batches, self.schedule, self.interleave, self.chunk)
        return Entries(lane, *(column[keep] for column in columns))


class Slots(Protocol):
    """What slots take at least, in ticks, for each of some entries."""

    @property
    def entries(self) -> Entries:
        """Whose slots these are."""
        ...

    def slot(self, work: str, ends: ModelEnds) -> Ints:
        """A chunk's slot of any micro-batch but the last."""
        ...

    def ending(self, chunks: Ints, ends: ModelEnds, behind: Ints) -> Ints:
        """The slots of the last micro-batch through all of a stage's chunks, the sums of gradients
        that can begin only with its backward pass, and what follows all slots. Other stages have
        `behind` to do after those slots, while gradients are summed."""
        ...


def step_ticks(slots: Slots) -> Ints:
    """What a step takes at least, for each entry."""
    e = slots.entries
    none = np.zeros(len(e.pipe), dtype=np.int64)

    def stage(ends: ModelEnds, behind: Ints) -> Ints:
        ending = slots.ending(e.interleave, ends, behind)
        if bool((e.micro_batches == 1).all()):
            return ending
        each = sum(slots.slot(work, ends) for work in e.works)
        if bool((e.interleave > 1).any()):
            inside = sum(slots.slot(work, ModelEnds()) for work in e.works)
            each = each + (e.interleave - 1) * inside
        return np.asarray((e.micro_batches - 1) * each + ending)

    def others(work: str) -> Ints:
        first, inside = slots.slot(work, ModelEnds(first=True)), slots.slot(work, ModelEnds())
        return np.asarray((e.pipe - 2) * inside + first)

    if bool((e.pipe == 1).all()):
        return stage(ModelEnds(first=True, last=True), none)
    # Where they are apart, gradients of weights may come last, behind all others.
    behind = none if len(e.works) == len(WORK) else others("backward")
    last = others("forward") + stage(ModelEnds(last=True), behind)
    return np.asarray(np.maximum(last, stage(ModelEnds(first=True), none)))


@dataclass(frozen=True)
class BusiestStream:
    """Slots as long as their busiest stream, with these overlaps switched on, or with any: what
    may have a stream of its own then has one, even apart from others of that stream."""

    ledger: Ledger
    entries: Entries
    overlap: tuple[str, ...] | None

    def slot(self, work: str, ends: ModelEnds) -> Ints:
        """See `Slots`."""
        return self._sum(work, self.entries.chunk, ends, last=False)

    def ending(self, chunks: Ints, ends: ModelEnds, behind: Ints) -> Ints:
        """See `Slots`."""
        layers = chunks * self.entries.chunk
        ways = [self._sum(work, layers, ends, last=True) for work in self.entries.works]
        step = self._sum("step", layers, ends, last=True)
        if self.overlap is None or "dp" not in self.overlap:
            # One sum of all gradients may be faster than those of buckets.
            return np.asarray(sum(ways) + behind + step)
        reduced = self._sum("gradients", layers, ends, last=True)
        whole = ways[0] + np.maximum(sum(ways[1:]) + behind, reduced)
        if bool((chunks > 1).any()):
            whole = np.where(chunks > 1, self._several(chunks, ends, ways, behind), whole)
        return np.asarray(whole + step)

    def _several(self, chunks: Ints, ends: ModelEnds, ways: Sequence[Ints], behind: Ints) -> Ints:
        """Before the step's end. The last micro-batch is through with some chunks before others are
        with earlier ones; only the first chunk's gradients come behind all slots."""
        if not ends.first:
            return np.asarray(sum(ways) + behind)
        rest, own = (chunks - 1) * self.entries.chunk, self.entries.chunk
        back = sum(self._sum(work, rest, ModelEnds(), last=True) for work in self.entries.works[1:])
        last = self._sum("gradients", own, ends, last=True)
        return np.asarray(np.maximum(sum(ways) + behind, ways[0] + back + last))

    def _sum(self, work: str, layers: Ints, ends: ModelEnds, *, last: bool) -> Ints:
        weights: dict[str, Ints | int] = {"layer": layers, **dict.fromkeys(ends.parts, 1)}
        lane, total = self.entries.lane, {COMPUTE: np.zeros(len(layers), dtype=np.int64)}
        for part, weight in weights.items():
            for (switch, stream), ticks in self.ledger.get((part, work, last), {}).items():
                own = self._stream(switch, stream)
                total[own] = total.get(own, 0) + weight * ticks[lane]
        return np.asarray(np.maximum.reduce(list(total.values())))

    def _computed(self, part: str, work: str, last: bool) -> Ints:
        own = self.ledger.get((part, work, last), {}).get(("", COMPUTE))
        lane = self.entries.lane
        return np.zeros(len(lane), dtype=np.int64) if own is None else own[lane]

    def _stream(self, switch: str, stream: str) -> str:
        if not switch or stream == COMPUTE:
            return stream
        if self.overlap is None:
            return f"{switch}:{stream}"
        return stream if switch in self.overlap else COMPUTE

    def busy(self) -> Ints:
        """For how long a device of any stage computes in a step at least."""
        e = self.entries
        ends = ModelEnds(first=True, last=True) if bool((e.pipe == 1).all()) else ModelEnds()
        weights: dict[str, Ints | int] = {"layer": e.chunk * e.interleave}
        weights |= dict.fromkeys(ends.parts, 1)
        found = np.zeros(len(e.lane), dtype=np.int64)
        for part, weight in weights.items():
            own = {key: self._computed(part, *key) for key in product(e.works, (False, True))}
            each = sum(ticks for (_, last), ticks in own.items() if not last)
            ending = sum(ticks for (_, last), ticks in own.items() if last)
            ending = ending + self._computed(part, "step", True)
            found = found + weight * ((e.micro_batches - 1) * each + ending)
        return np.asarray(found)


def ledger(clock: OpBounds, some: BatchedProgram) -> Ledger:
    """What each part of the model needs, an entry for each row.

    The entry (part, work, last) has the sums of ops by the switch that put them on a stream of
    their own ("" if none did, HELD for a collective on the compute stream) and that stream; `work`
    is one of WORK, or "gradients" for sums over data and "step" for what follows all slots; `last`
    tells the last micro-batch's.
    """
    ticks: dict[tuple[str, str, bool], dict[tuple[str, str], Ints]] = defaultdict(dict)
    for op in some.program.ops:
        where = [] if adds_to_tied(op, some) else _where(op, some.micro_batches - 1)
        for entry in where:
            streams, own = ticks[entry], clock.ticks(some, op)
            held = op.is_collective and op.stream == COMPUTE
            key = HELD if held else switch_of(op), op.stream
            streams[key] = streams[key] + own if key in streams else own
    return ticks


def _where(op: Op, last: int) -> list[tuple[str, str, bool]]:
    """Which entries of a ledger an op belongs to; none for what grows with the model, or is tiny.

    The first micro-batch's slots stand for those of all but the last: they add to no gradients.
    """
    if op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE) and op.part != MODEL:
        return [(op.part.kind, "gradients", True)]
    if op.block == STEP:
        return [(op.part.kind, "step", True)] if op.part != MODEL else []
    return [
        (op.block.part.kind, op.block.work, is_last)
        for is_last in (False, True)
        if op.block.micro_batch == (last if is_last else 0)
    ]
