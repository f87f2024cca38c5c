"""How long the slots of many plans take when no collective disturbs another: in all else exact.

All plans whose programs are the same op by op go through one program together. Links that several
collectives share make slots longer, never shorter: each collective lasts as long or longer, and
what follows it starts as late or later. So these times are bounds, and close ones.

A chunk of many layers is played with a few. Once two layers one after the other come as much later
as the one before them, op by op, all further ones do too: an op follows those of its own layer and
of the two before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.engine.interference import interference_of
from simulator.search.bounds.batched_programs import BatchedProgram
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.slot_programs import SlotProgram
from simulator.search.bounds.stream_bound import Entries, ModelEnds
from simulator.search.bounds.unsupported import ACROSS_STAGES
from workload.dataflow import Waits
from workload.op import (
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    COMPUTE,
    EMBED,
    HEAD,
    NONE,
    STEP,
    Identity,
    Op,
    layer_part,
)

Ints = NDArray[np.int64]
Before = tuple[str, ModelEnds]  # the work of a slot of the last micro-batch, and its chunk's ends
NORM = "norm.squares"
TABLE = "embed.w"
PLACE_OF = {"embed": "first", "head": "last"}
FEW = 8  # layers, the middle ones of which are mostly alike


@dataclass(frozen=True)
class IsolatedTimes:
    """Slots played with a few layers, an entry for each lane.

    `compute` is the end of the compute stream's last op, `every` that of all ops. With each further
    layer `compute` comes `growth` later at least; so does `plain`, the end of the compute stream if
    it never waited for what it adds to gradients at its end, and `added` more for that. Other
    streams may be behind, and catch up in further layers: they end no sooner, but not later either.
    """

    compute: Ints
    every: Ints
    growth: Ints
    plain: Ints
    added: Ints

    def ends(self, lane: Ints, more: Ints) -> tuple[Ints, Ints]:
        """`compute` and `every` of some lanes with so many more layers."""
        plain = self.plain[lane] + more * (self.growth + self.added)[lane]
        compute = np.maximum(self.compute[lane] + more * self.growth[lane], plain)
        return compute, np.maximum(self.every[lane], compute)


@dataclass(frozen=True)
class IsolatedBlocks:
    """Slots of `some` rows, each with all the streams that its plan gives it."""

    clock: OpBounds
    some: BatchedProgram
    entries: Entries
    script: SlotProgram

    def slot(
        self, work: str, ends: ModelEnds, *, last: bool = False, after: Before | None = None
    ) -> Ints:
        """See `simulator.search.bounds.stream_bound.Slots`; the last micro-batch's if so asked, and
        with what is under way after a slot of the last micro-batch right before it."""
        key = work, ends, last, after
        if key not in self._slots:
            number = self._last if last else 0
            self._slots[key] = self._chunk(number, (work,), ends, after)[0]
        return self._slots[key]

    @cached_property
    def _slots(self) -> dict[tuple[str, ModelEnds, bool, Before | None], Ints]:
        return {}

    def ending(self, chunks: Ints, ends: ModelEnds, behind: Ints) -> Ints:
        """See `simulator.search.bounds.stream_bound.Slots`; chunks but the one with the ends run
        their slots before it."""
        works = tuple(self.entries.works)
        several = bool((chunks > 1).any())
        plain = sum(self._chunk(self._last, (work,), ModelEnds())[0] for work in works if several)
        forward = self._chunk(self._last, works[:1], ends)[0]
        compute, every = self._chunk(self._last, works[1:], ends)
        before, after = self.step(chunks, ends)
        over = compute + np.maximum(before, behind)
        # The last of several chunks is through before others are: its streams may have caught up.
        ends_all = (chunks == 1) | ends.first
        over = np.where(ends_all, np.maximum(over, every), over)
        return np.asarray((chunks - 1) * plain + forward + over + after)

    def message_bytes(self, at: int) -> int:
        """What a stage of an entry sends to the next one: the residual stream."""
        program = self.some.program
        stream = next(op for op in program.ops if op.label == "down.add").writes[0]
        return int(self.some.values(program.buffers[stream].nbytes)[self.entries.lane[at]])

    def step(self, chunks: Ints, ends: ModelEnds) -> tuple[Ints, Ints]:
        """What follows all slots: sums of gradients, which others may still be under way beside,
        and from the norm on what waits for all of them."""
        e, layers = self.entries, chunks * self.entries.chunk
        alone = ends.alone
        before = np.zeros(len(e.lane), dtype=np.int64)
        total: dict[str, Ints] = {COMPUTE: before}
        for op in self.some.program.ops:
            if op.block != STEP or (op.part in (EMBED, HEAD) and op.part.kind not in ends.parts):
                continue
            if op.part.is_layer:
                ticks = layers * self._ticks[op.identity][e.lane]
            elif op.label in ACROSS_STAGES and not alone:
                wide = replace(op, axes=(*op.axes, "pipe"))  # more ranks may be faster than few
                ticks = self.clock.ticks(self.some, wide)[e.lane]
            else:
                ticks = self._whole(op, layers, alone)
            if op.label == NORM:
                before, total = total[COMPUTE], {COMPUTE: np.zeros_like(before)}
            total[op.stream] = total.get(op.stream, 0) + ticks
        return before, np.asarray(np.maximum.reduce(list(total.values())))

    def _whole(self, op: Op, layers: Ints, alone: bool) -> Ints:
        """An op on all the layers' parameters, and if `alone` on those of the model's ends; else on
        those of one end or of none, whichever is the fastest: a collective on more bytes may be
        faster than one on less, where its library changes the algorithm between them."""
        held = self._operands(op)
        if "layer" not in held:
            return self._ticks[op.identity][self.entries.lane]
        each, nothing = held["layer"], self.some.values(0)
        first, last = held.get("first", nothing), held.get("last", nothing)
        rest = self.some.values(op.nbytes) - each - first - last
        last_apart = last + held.get("shared", nothing)
        ends = [first + last] if alone else [nothing, first, last_apart]
        result = np.zeros(len(layers), dtype=np.int64)
        for count in np.unique(layers).tolist():
            those = layers == count
            ways = [self.clock.of_bytes(self.some, op, rest + count * each + end) for end in ends]
            result[those] = np.minimum.reduce(ways)[self.entries.lane[those]]
        return result

    def _operands(self, op: Op) -> dict[str, Ints]:
        """The bytes of an op's operands by where they belong: to the one `layer`, or to what comes
        first or last in the model; "shared" of the former is what the last stage has too."""
        names = (*op.reads, *op.writes)
        if op.is_collective:
            names = op.writes if op.kind == "all_gather" else op.reads
        held: dict[str, Ints] = {}
        for name in names:
            buffer = self.some.program.buffers[name]
            part = PLACE_OF.get(buffer.part.kind, buffer.part.kind)
            own = self.some.values(buffer.nbytes)
            is_table = self.some.program.gpt.tied and buffer.parameter == TABLE
            for key in (part, "shared") if is_table else (part,):
                held[key] = held[key] + own if key in held else own
        return held

    @property
    def _last(self) -> int:
        return self.some.micro_batches - 1

    def _chunk(
        self, micro_batch: int, works: tuple[str, ...], ends: ModelEnds, after: Before | None = None
    ) -> tuple[Ints, Ints]:
        """When the compute stream is through with some slots of each entry's chunk, and when every
        stream is."""
        chunk, lane = self.entries.chunk, self.entries.lane
        found = np.zeros((2, len(lane)), dtype=np.int64)
        for count in np.unique(np.minimum(chunk, FEW)).tolist():
            those = np.minimum(chunk, FEW) == count
            played_few = self._played(micro_batch, works, ends, count, after)
            found[:, those] = played_few.ends(lane[those], chunk[those] - count)
        return found[0], found[1]

    def _played(
        self,
        micro_batch: int,
        works: tuple[str, ...],
        ends: ModelEnds,
        layers: int,
        after: Before | None,
    ) -> IsolatedTimes:
        key = micro_batch, works, ends, layers, after
        if key not in self._known:
            ops, following = self.script.slots(micro_batch, works, ends, layers)
            durations = [self._ticks[_in_first_layer(op)] for op in ops]
            if share := self.clock.fabric.compute_share:
                carry_in = self._left(after, layers) if after is not None else {}
                interference = interference_of(ops, following, tuple(carry_in))
                durations = interference.slowed(durations, share, np.minimum, _rounded, carry_in)
            self._known[key] = isolated_times(ops, following, durations, len(self.some.rows))
        return self._known[key]

    def _left(self, before: Before, layers: int) -> dict[str, Ints]:
        """What is under way on each stream behind a slot of the last micro-batch."""
        work, ends = before
        ops, following = self.script.slots(self._last, (work,), ends, layers)
        durations = [self._ticks[_in_first_layer(op)] for op in ops]
        return interference_of(ops, following).carry_out(durations, {})

    @cached_property
    def _known(
        self,
    ) -> dict[tuple[int, tuple[str, ...], ModelEnds, int, Before | None], IsolatedTimes]:
        return {}

    @cached_property
    def _ticks(self) -> Mapping[Identity, Ints]:
        # A pipeline's stages meet in more ranks than those of one, which may have no time.
        others = ACROSS_STAGES if bool((self.entries.pipe > 1).any()) else ()
        every = (op for op in self.some.program.ops if op.label not in others)
        return {op.identity: self.clock.ticks(self.some, op) for op in every}


def _in_first_layer(op: Op) -> Identity:
    """What an op takes in any layer is what it takes in the first."""
    m, part, again, label = op.identity
    return m, layer_part(0) if part.is_layer else part, again, label


def _rounded(ticks: NDArray[np.float64]) -> Ints:
    return np.rint(ticks).astype(np.int64)


def isolated_times(
    ops: Sequence[Op], following: Sequence[Waits], durations: Sequence[Ints], lanes: int
) -> IsolatedTimes:
    """Play some slots, each op when its stream and what it waits for are done."""
    zero = np.zeros(lanes, dtype=np.int64)
    clocks: dict[str, Ints] = {COMPUTE: zero}
    ends: list[Ints] = []
    for op, awaited, ticks in zip(ops, following, durations, strict=True):
        start = clocks.get(op.stream, zero)
        for index in awaited:
            start = np.maximum(start, ends[index])
        clocks[op.stream] = end = start + ticks
        ends.append(end)
    tail = len(ops)
    while tail and ops[tail - 1].kind == "accumulate":
        tail -= 1
    added = sum((durations[at] for at in range(tail, len(ops))), zero)
    own = _of_layer(ops, durations, tail, zero)
    before = next((ends[at] for at in range(tail - 1, -1, -1) if ops[at].stream == COMPUTE), zero)
    every = np.maximum.reduce(list(clocks.values()))
    return IsolatedTimes(clocks[COMPUTE], every, _growth(ops, ends, zero), before + added, own)


def _of_layer(ops: Sequence[Op], durations: Sequence[Ints], tail: int, zero: Ints) -> Ints:
    """What the ops at the end take at least that belong to one layer, if they were put off for all.

    What collectives in flight take from compute is charged to one of them, but not to others.
    """
    ticks: dict[int, Ints] = {}
    for op, own in zip(ops[tail:], durations[tail:], strict=True):
        layer = op.part.layer
        ticks[layer] = ticks.get(layer, zero) + own
    ticks.pop(NONE, None)
    return zero if len(ticks) < FEW else np.minimum.reduce(list(ticks.values()))


def _growth(ops: Sequence[Op], ends: Sequence[Ints], zero: Ints) -> Ints:
    """By how much the layers in the middle come one after the other, where all their ops agree."""
    at: dict[int, dict[Identity, Ints]] = {}
    for op, end in zip(ops, ends, strict=True):
        sums = op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE)
        if op.part.is_layer and op.kind != "accumulate" and not sums:
            at.setdefault(op.part.layer, {})[_in_first_layer(op)] = end
    if len(at) < FEW:
        return zero
    order = list(at)  # as they come: backward passes from the last layer to the first
    a, b, c, d = (at[order[number]] for number in (3, 4, 5, 6))
    shifts = [late[name] - early[name] for early, late in ((a, b), (b, c), (c, d)) for name in b]
    least = np.minimum.reduce(shifts)
    return np.where(np.maximum.reduce(shifts) == least, least, zero)
