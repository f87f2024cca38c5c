"""Lower bounds of a step from lower bounds of its slots, and of slots from their busiest stream.

A stage takes at least the sum of its slots and of what follows them. Before its first slot the
stages ahead of it run one forward slot each, and after its last backward pass they run one backward
slot each. Messages and all other waits between stages are left out, which keeps a bound.
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
from workload.pipeline.schedule import STRAIGHT
from workload.sizes.arrays import Counts, Indices, Ticks

SCHEDULES = STRAIGHT
WORK = ("forward", "backward", "weight")
BLOCKING = "blocking"
PartTimes = Mapping[tuple[str, str, bool], Mapping[tuple[str, str], Ticks]]


@dataclass(frozen=True)
class ModelEnds:
    """Which ends of the model a chunk has: the embedding (`first`), the head (`last`)."""

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
    """Plans to be bounded, as arrays.

    `lane` is the row of a batched program, `schedule` an index of SCHEDULES, `chunk` the layers of
    each of its `interleave` chunks. Either all or none have a pipeline, and either all or none
    split backward passes.
    """

    lane: Indices
    pipe: Counts
    micro_batches: Counts
    schedule: Indices
    interleave: Counts
    chunk: Counts

    @property
    def works(self) -> Sequence[str]:
        """The works of their slots."""
        return WORK if SCHEDULES[int(self.schedule[0])].startswith("zb") else WORK[:2]

    def only(self, keep: NDArray[np.bool_] | Indices, lane: Indices) -> Entries:
        """Some of them, for rows that are in other places."""
        columns = (self.pipe, self.micro_batches, self.schedule, self.interleave, self.chunk)
        return Entries(lane, *(column[keep] for column in columns))


class Slots(Protocol):
    """Lower bounds of slots in ticks, one for each entry."""

    @property
    def entries(self) -> Entries:
        """The plans."""
        ...

    def slot(self, work: str, ends: ModelEnds) -> Ticks:
        """A chunk's slot of any micro-batch but the last."""
        ...

    def ending(self, chunks: Counts, ends: ModelEnds, behind: Ticks) -> Ticks:
        """The last micro-batch's slots of all of a stage's chunks, the sums of gradients, which
        begin with its backward pass at the earliest, and what follows all slots. Other stages take
        `behind` ticks after these slots, while gradients are summed."""
        ...


def step_ticks(slots: Slots) -> Ticks:
    """A lower bound of the step, for each entry."""
    e = slots.entries
    none = np.zeros(len(e.pipe), dtype=np.int64)

    def stage(ends: ModelEnds, behind: Counts) -> Ticks:
        ending = slots.ending(e.interleave, ends, behind)
        if bool((e.micro_batches == 1).all()):
            return ending
        each = sum(slots.slot(work, ends) for work in e.works)
        if bool((e.interleave > 1).any()):
            inside = sum(slots.slot(work, ModelEnds()) for work in e.works)
            each = each + (e.interleave - 1) * inside
        return np.asarray((e.micro_batches - 1) * each + ending)

    def others(work: str) -> Ticks:
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
    """Slots that take as long as their busiest stream, with these overlaps switched on.

    With None the bound holds for any set of overlaps: whatever an overlap may move has a stream of
    its own, apart even from others of that overlap.
    """

    part_times: PartTimes
    entries: Entries
    overlap: tuple[str, ...] | None

    def slot(self, work: str, ends: ModelEnds) -> Ticks:
        """See `Slots`."""
        return self._sum(work, self.entries.chunk, ends, last=False)

    def ending(self, chunks: Counts, ends: ModelEnds, behind: Ticks) -> Ticks:
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

    def _several(
        self, chunks: Counts, ends: ModelEnds, ways: Sequence[Ticks], behind: Ticks
    ) -> Ticks:
        """What precedes the step's end, with several chunks: the gradients of all chunks but the
        first may be summed while slots of earlier chunks still run."""
        if not ends.first:
            return np.asarray(sum(ways) + behind)
        rest, own = (chunks - 1) * self.entries.chunk, self.entries.chunk
        back = sum(self._sum(work, rest, ModelEnds(), last=True) for work in self.entries.works[1:])
        last = self._sum("gradients", own, ends, last=True)
        return np.asarray(np.maximum(sum(ways) + behind, ways[0] + back + last))

    def _sum(self, work: str, layers: Counts, ends: ModelEnds, *, last: bool) -> Ticks:
        weights: dict[str, Counts | int] = {"layer": layers, **dict.fromkeys(ends.parts, 1)}
        lane, total = self.entries.lane, {COMPUTE: np.zeros(len(layers), dtype=np.int64)}
        for part, weight in weights.items():
            for (switch, stream), ticks in self.part_times.get((part, work, last), {}).items():
                own = self._stream(switch, stream)
                total[own] = total.get(own, 0) + weight * ticks[lane]
        return np.asarray(np.maximum.reduce(list(total.values())))

    def _computed(self, part: str, work: str, last: bool) -> Ticks:
        own = self.part_times.get((part, work, last), {}).get(("", COMPUTE))
        lane = self.entries.lane
        return np.zeros(len(lane), dtype=np.int64) if own is None else own[lane]

    def _stream(self, switch: str, stream: str) -> str:
        if not switch or stream == COMPUTE:
            return stream
        if self.overlap is None:
            return f"{switch}:{stream}"
        return stream if switch in self.overlap else COMPUTE

    def busy(self) -> Ticks:
        """A lower bound of the ticks for which a device of any stage computes in a step."""
        e = self.entries
        ends = ModelEnds(first=True, last=True) if bool((e.pipe == 1).all()) else ModelEnds()
        weights: dict[str, Counts | int] = {"layer": e.chunk * e.interleave}
        weights |= dict.fromkeys(ends.parts, 1)
        found = np.zeros(len(e.lane), dtype=np.int64)
        for part, weight in weights.items():
            own = {key: self._computed(part, *key) for key in product(e.works, (False, True))}
            each = sum(ticks for (_, last), ticks in own.items() if not last)
            ending = sum(ticks for (_, last), ticks in own.items() if last)
            ending = ending + self._computed(part, "step", True)
            found = found + weight * ((e.micro_batches - 1) * each + ending)
        return np.asarray(found)


def part_times(op_bounds: OpBounds, some: BatchedProgram) -> PartTimes:
    """Ticks of the model's parts, an entry for each row.

    The key (part, work, last) has sums of ops by the overlap that gave them a stream of their own
    ("" if none did, BLOCKING for a collective on the compute stream) and that stream. `work` is one
    of WORK, "gradients" for sums over data or "step" for what follows all slots; `last` is true for
    the last micro-batch.
    """
    ticks: dict[tuple[str, str, bool], dict[tuple[str, str], Ticks]] = defaultdict(dict)
    for op in some.program.ops:
        where = [] if adds_to_tied(op, some) else _where(op, some.micro_batches - 1)
        for entry in where:
            streams, own = ticks[entry], op_bounds.ticks(some, op)
            held = op.is_collective and op.stream == COMPUTE
            key = BLOCKING if held else switch_of(op), op.stream
            streams[key] = streams[key] + own if key in streams else own
    return ticks


def _where(op: Op, last: int) -> list[tuple[str, str, bool]]:
    """The keys of `part_times` that an op counts for; none for ops that grow with the model, or are
    tiny.

    The first micro-batch, which adds to no gradients, stands for all but the last.
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
