"""Lower bounds of a step from lower bounds of its slots, and of slots from their busiest stream.

A stage takes at least the sum of its slots and of what follows them: those of the first micro-batch
overwrite gradients, those of all others add to them. Before its first slot the
stages ahead of it run one forward slot each, and after its last backward pass they run one backward
slot each. Messages and all other waits between stages are left out, which keeps a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.search.bounds.layer_kinds import LAYER
from simulator.search.bounds.layouts import (
    AHEAD,
    OWN,
    REST,
    ChunkLayers,
    Layouts,
    ModelEnds,
    plain_layers,
)
from simulator.search.bounds.part_times import PartTimes
from topologies.records import record
from workload.op import COMPUTE
from workload.pipeline.schedule import STRAIGHT
from workload.sizes.arrays import Counts, Flags, Indices, Ticks

SCHEDULES = STRAIGHT
WORK = ("forward", "backward", "weight")
FIRST, LAST, INSIDE, ALONE = (
    ModelEnds(first, last)
    for first, last in ((True, False), (False, True), (False, False), (True, True))
)


@record(slots=False)
class Entries:
    """Plans to be bounded, as arrays.

    `lane` is the row of a batched program, `schedule` an index of SCHEDULES, `chunk` the layers of
    each of its `interleave` chunks; of a model with several kinds of layers it is the number of one
    of `layouts`. To be bounded they must be of one of `sorts`: either all or none have a
    pipeline, all or none split backward passes, and all or none have one micro-batch.
    """

    lane: Indices
    pp: Counts
    micro_batches: Counts
    schedule: Indices
    vpp: Counts
    chunk: Counts
    layouts: Layouts | None = None

    def held(self, ends: ModelEnds, which: str) -> dict[str, Counts]:
        """How many layers of each kind some chunks of the stage with these ends have, or of the
        stages ahead of it; without ends of the fullest stage (`layouts.py`)."""
        if self.layouts is not None:
            return self.layouts.held(ends, which, self.chunk)
        return {LAYER: self._chunks_of(which) * self.chunk}

    def _chunks_of(self, which: str) -> Counts:
        counts = {OWN: np.ones_like(self.pp), REST: self.vpp - 1, AHEAD: self.pp - 2}
        return counts[which]

    def of_stage(self, ends: ModelEnds) -> dict[str, Counts]:
        """How many layers of each kind all chunks of the stage with these ends have."""
        own, rest = (self.held(ends, which) for which in (OWN, REST))
        return {kind: own[kind] + rest[kind] for kind in own}

    def chunks(
        self, ends: ModelEnds, which: str
    ) -> Iterator[tuple[Flags, Mapping[ChunkLayers, Counts | int]]]:
        """The chunks whose layers `held` counts, and how many there are of each, for some entries
        at a time."""
        for number in np.unique(self.chunk).tolist():
            chosen = self.chunk == number
            if self.layouts is None:
                yield chosen, {plain_layers(number): self._chunks_of(which)[chosen]}
            else:
                yield chosen, self.layouts.every[number].of(ends, which)

    def chunk_of(self, at: int, number: int) -> tuple[ModelEnds, ChunkLayers]:
        """A chunk of one entry, by its number in the model: its ends and its layers."""
        last = int(self.pp[at] * self.vpp[at]) - 1
        chunk, ends = int(self.chunk[at]), ModelEnds(first=number == 0, last=number == last)
        if self.layouts is None:
            return ends, plain_layers(chunk)
        return ends, self.layouts.every[chunk].chunks[number]

    def stages_of(self, at: int) -> list[dict[str, int]]:
        """How many layers of each kind each stage of one entry has."""
        if self.layouts is None:
            return [{LAYER: int(self.chunk[at] * self.vpp[at])}] * int(self.pp[at])
        layout = self.layouts.every[int(self.chunk[at])]
        pairs = (layout.kinds(stage) for stage in range(layout.pp))
        return [dict(zip(layout.names, pair, strict=True)) for pair in pairs]

    def of_any_stage(self) -> dict[str, Counts]:
        """How many layers of each kind every stage has at least."""
        return self.of_stage(INSIDE) if self.layouts is None else self.layouts.least(self.chunk)

    @property
    def works(self) -> Sequence[str]:
        """The works of their slots."""
        return WORK if is_split(SCHEDULES[int(self.schedule[0])]) else WORK[:2]

    def sorts(self) -> list[Indices]:
        """Which of them are of each sort."""
        split = np.array([is_split(each) for each in SCHEDULES])[self.schedule]
        sort = 4 * (self.pp > 1) + 2 * split + (self.micro_batches == 1)
        return [np.flatnonzero(sort == each) for each in np.unique(sort)]

    def only(self, keep: NDArray[np.bool_] | Indices, lane: Indices) -> Entries:
        """Some of them, for rows that are in other places."""
        columns = (self.pp, self.micro_batches, self.schedule, self.vpp, self.chunk)
        pp, micro_batches, schedule, vpp, chunk = (column[keep] for column in columns)
        return Entries(lane, pp, micro_batches, schedule, vpp, chunk, self.layouts)


def is_split(schedule: str) -> bool:
    """Whether a schedule splits backward passes."""
    return schedule.startswith("zb")


class Slots(Protocol):
    """Lower bounds of slots in ticks, one for each entry."""

    @property
    def entries(self) -> Entries:
        """The plans."""
        ...

    def slots(self, work: str, ends: ModelEnds, which: str = OWN, *, middle: bool = False) -> Ticks:
        """The slots of some chunks of the stage with these ends, of any micro-batch, or of any but
        the first, which adds to no gradients: of its own, which has the ends, of the rest, or of
        each stage ahead of it but the first."""
        ...

    def ending(self, ends: ModelEnds, behind: Ticks) -> Ticks:
        """The last micro-batch's slots of all of a stage's chunks, the sums of gradients, which
        begin with its backward pass at the earliest, and what follows all slots. Other stages take
        `behind` ticks after these slots, while gradients are summed."""
        ...


def step_ticks(slots: Slots) -> Ticks:
    """A lower bound of the step, for each entry."""
    return np.asarray(np.maximum.reduce([*ticks_by_stage(slots)]))


def ticks_by_stage(slots: Slots) -> Iterator[Ticks]:
    """Lower bounds of the step, for each entry, one for each stage that is looked at: where layers
    are of several kinds the fullest between the ends, then the last and the first."""
    e = slots.entries
    none = np.zeros(len(e.pp), dtype=np.int64)

    def stage(ends: ModelEnds, behind: Counts) -> Ticks:
        ending = slots.ending(ends, behind)
        if bool((e.micro_batches == 1).any()):
            return ending
        chunks = (OWN, REST) if bool((e.vpp > 1).any()) else (OWN,)
        first, each = (
            sum(slots.slots(*at, middle=middle) for at in product(e.works, [ends], chunks))
            for middle in (False, True)
        )
        return np.asarray(first + (e.micro_batches - 2) * each + ending)

    def behind_others(ends: ModelEnds) -> Ticks:
        def others(work: str) -> Ticks:
            return slots.slots(work, FIRST) + slots.slots(work, ends, AHEAD)

        # Where they are apart, gradients of weights may come last, behind all others.
        behind = none if len(e.works) == len(WORK) else others("backward")
        return np.asarray(others("forward") + stage(ends, behind))

    if bool((e.pp == 1).all()):
        yield stage(ALONE, none)
        return
    if e.layouts is not None:
        yield behind_others(INSIDE)
    yield behind_others(LAST)
    yield stage(FIRST, none)


@record(slots=False)
class BusiestStream:
    """Slots that take as long as their busiest stream, with these overlaps switched on.

    With None the bound holds for any set of overlaps: whatever an overlap may move has a stream of
    its own, apart even from others of that overlap.
    """

    part_times: PartTimes
    entries: Entries
    overlap: tuple[str, ...] | None

    def slots(self, work: str, ends: ModelEnds, which: str = OWN, *, middle: bool = False) -> Ticks:
        """See `Slots`; one in the middle has all that the last has, but for sums of gradients."""
        key = work, ends, which, middle
        if key not in self._slots:
            held = self.entries.held(ends, which)
            own = ends if which == OWN else INSIDE
            self._slots[key] = self._sum(work, held, own, last=middle)
        return self._slots[key]

    @cached_property
    def _slots(self) -> dict[tuple[str, ModelEnds, str, bool], Ticks]:
        return {}

    def ending(self, ends: ModelEnds, behind: Ticks) -> Ticks:
        """See `Slots`."""
        layers, chunks = self.entries.of_stage(ends), self.entries.vpp
        ways = [self._sum(work, layers, ends, last=True) for work in self.entries.works]
        step = self._sum("step", layers, ends, last=True)
        if self.overlap is None or "dp" not in self.overlap:
            # One sum of all gradients may be faster than those of buckets.
            return np.asarray(sum(ways) + behind + step)
        reduced = self._sum("gradients", layers, ends, last=True)
        whole = ways[0] + np.maximum(sum(ways[1:]) + behind, reduced)
        if bool((chunks > 1).any()):
            whole = np.where(chunks > 1, self._several(ends, ways, behind), whole)
        return np.asarray(whole + step)

    def _several(self, ends: ModelEnds, ways: Sequence[Ticks], behind: Ticks) -> Ticks:
        """What precedes the step's end, with several chunks: the gradients of all chunks but the
        first may be summed while slots of earlier chunks still run."""
        if not ends.first:
            return np.asarray(sum(ways) + behind)
        rest, own = (self.entries.held(ends, which) for which in (REST, OWN))
        back = sum(self._sum(work, rest, INSIDE, last=True) for work in self.entries.works[1:])
        last = self._sum("gradients", own, ends, last=True)
        return np.asarray(np.maximum(sum(ways) + behind, ways[0] + back + last))

    def _sum(
        self, work: str, layers: Mapping[str, Counts], ends: ModelEnds, *, last: bool
    ) -> Ticks:
        weights: dict[str, Counts | int] = {**layers, **dict.fromkeys(ends.parts, 1)}
        lane = self.entries.lane
        total = {COMPUTE: np.zeros(len(lane), dtype=np.int64)}
        for part, weight in weights.items():
            for stream, ticks in self._by_stream(part, work, last).items():
                total[stream] = total.get(stream, 0) + weight * ticks
        return self.longest(total)

    def _by_stream(self, part: str, work: str, last: bool) -> Mapping[str, Ticks]:
        """Ticks of a part of the model on each of its streams, for each entry."""
        key = part, work, last
        if key not in self._parts:
            found: dict[str, Ticks] = {}
            for (switch, stream), ticks in self.part_times.get(key, {}).items():
                own = self._stream(switch, stream)
                found[own] = found[own] + ticks if own in found else ticks
            self._parts[key] = {own: ticks[self.entries.lane] for own, ticks in found.items()}
        return self._parts[key]

    @cached_property
    def _parts(self) -> dict[tuple[str, str, bool], Mapping[str, Ticks]]:
        return {}

    def longest(self, total: Mapping[str, Ticks]) -> Ticks:
        """How long slots take at least that have so many ticks on each stream."""
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
        ends = ALONE if bool((e.pp == 1).all()) else INSIDE
        weights: dict[str, Counts | int] = {**e.of_any_stage(), **dict.fromkeys(ends.parts, 1)}
        found = np.zeros(len(e.lane), dtype=np.int64)
        for part, weight in weights.items():
            own = {key: self._computed(part, *key) for key in product(e.works, (False, True))}
            each = sum(ticks for (_, last), ticks in own.items() if not last)
            ending = sum(ticks for (_, last), ticks in own.items() if last)
            ending = ending + self._computed(part, "step", True)
            found = found + weight * ((e.micro_batches - 1) * each + ending)
        return np.asarray(found)
