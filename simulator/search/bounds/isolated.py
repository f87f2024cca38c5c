"""Lower bounds of slots: simulated without contention, for many plans at once.

Why a bound: contention makes collectives longer, never shorter, and an op starts when the last of
its predecessors ends, so every op ends as late or later with contention. In all else the times are
exact.

All plans whose programs are equal op by op share one pass over the program, whose times are arrays
with one entry per plan.

A chunk of many layers is simulated with `FEW`. Once every op of two consecutive layers is later
than in the layer before by the same time, all further layers are too, since an op waits for ops of
its own layer and of the two before it. Where layers differ, the least growth 0 is taken, which
keeps a bound.

Cost: one array operation per op and wait of the slots of a few layers, for a whole group of plans.
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
from workload.sizes.arrays import Bytes, Counts, Indices, Ticks

PrecedingSlot = tuple[
    str, ModelEnds
]  # the work of a slot of the last micro-batch, and its chunk's ends
NORM = "norm.squares"
TABLE = "embed.w"
PLACE_OF = {"embed": "first", "head": "last"}
FEW = 8  # layers, the middle ones of which are mostly alike


@dataclass(frozen=True)
class IsolatedTimes:
    """Ends of slots simulated with a few layers, an entry for each lane.

    `compute` is the end of the compute stream, `every` that of all streams; each further layer adds
    at least `growth` to `compute`. `plain` is the end of the compute stream if it never waited for
    what it adds to gradients at its end; each further layer adds `growth + added` to it. Other
    streams end no sooner with further layers.
    """

    compute: Ticks
    every: Ticks
    growth: Ticks
    plain: Ticks
    added: Ticks

    def ends(self, lane: Indices, more: Counts) -> tuple[Ticks, Ticks]:
        """`compute` and `every` of some lanes with so many more layers."""
        plain = self.plain[lane] + more * (self.growth + self.added)[lane]
        compute = np.maximum(self.compute[lane] + more * self.growth[lane], plain)
        return compute, np.maximum(self.every[lane], compute)


@dataclass(frozen=True)
class IsolatedBlocks:
    """Slots of `some` rows, each with all the streams that its plan gives it."""

    op_bounds: OpBounds
    some: BatchedProgram
    entries: Entries
    slot_program: SlotProgram

    def slot(
        self, work: str, ends: ModelEnds, *, last: bool = False, after: PrecedingSlot | None = None
    ) -> Ticks:
        """See `stream_bound.Slots`; with `last` of the last micro-batch, and with the collectives
        in flight after a slot of the last micro-batch right before it."""
        key = work, ends, last, after
        if key not in self._slots:
            number = self._last if last else 0
            self._slots[key] = self._chunk(number, (work,), ends, after)[0]
        return self._slots[key]

    @cached_property
    def _slots(self) -> dict[tuple[str, ModelEnds, bool, PrecedingSlot | None], Ticks]:
        return {}

    def ending(self, chunks: Counts, ends: ModelEnds, behind: Ticks) -> Ticks:
        """See `stream_bound.Slots`; the chunk with the model's ends runs its slots last."""
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
        """Bytes that a stage of an entry sends to the next one: the residual stream."""
        program = self.some.program
        stream = next(op for op in program.ops if op.label == "down.add").writes[0]
        return int(self.some.values(program.buffers[stream].nbytes)[self.entries.lane[at]])

    def step(self, chunks: Counts, ends: ModelEnds) -> tuple[Ticks, Ticks]:
        """What follows all slots: sums of gradients, beside which collectives may be in flight; and
        from the norm on what waits for all of them."""
        e, layers = self.entries, chunks * self.entries.chunk
        alone = ends.alone
        before = np.zeros(len(e.lane), dtype=np.int64)
        total: dict[str, Ticks] = {COMPUTE: before}
        for op in self.some.program.ops:
            if op.block != STEP or (op.part in (EMBED, HEAD) and op.part.kind not in ends.parts):
                continue
            if op.part.is_layer:
                ticks = layers * self._ticks[op.identity][e.lane]
            elif op.label in ACROSS_STAGES and not alone:
                wide = replace(op, axes=(*op.axes, "pipe"))  # more ranks may be faster than few
                ticks = self.op_bounds.ticks(self.some, wide)[e.lane]
            else:
                ticks = self._whole(op, layers, alone)
            if op.label == NORM:
                before, total = total[COMPUTE], {COMPUTE: np.zeros_like(before)}
            total[op.stream] = total.get(op.stream, 0) + ticks
        return before, np.asarray(np.maximum.reduce(list(total.values())))

    def _whole(self, op: Op, layers: Counts, alone: bool) -> Ticks:
        """An op on the parameters of all layers, and with `alone` on those of the model's ends;
        else the fastest of one end, the other and none, since a collective on more bytes may be
        faster than on fewer where the library changes its algorithm between them."""
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
            chosen = layers == count
            ways = [
                self.op_bounds.of_bytes(self.some, op, rest + count * each + end) for end in ends
            ]
            result[chosen] = np.minimum.reduce(ways)[self.entries.lane[chosen]]
        return result

    def _operands(self, op: Op) -> dict[str, Bytes]:
        """Bytes of an op's operands by part of the model: "layer", "first" or "last"; and "shared"
        for the tied table, which the last stage holds too."""
        names = (*op.reads, *op.writes)
        if op.is_collective:
            names = op.writes if op.kind == "all_gather" else op.reads
        held: dict[str, Bytes] = {}
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
        self,
        micro_batch: int,
        works: tuple[str, ...],
        ends: ModelEnds,
        after: PrecedingSlot | None = None,
    ) -> tuple[Ticks, Ticks]:
        """The end of the compute stream, and of all streams, after some slots of each entry's
        chunk."""
        chunk, lane = self.entries.chunk, self.entries.lane
        found = np.zeros((2, len(lane)), dtype=np.int64)
        for count in np.unique(np.minimum(chunk, FEW)).tolist():
            chosen = np.minimum(chunk, FEW) == count
            few = self._few_layers(micro_batch, works, ends, count, after)
            found[:, chosen] = few.ends(lane[chosen], chunk[chosen] - count)
        return found[0], found[1]

    def _few_layers(
        self,
        micro_batch: int,
        works: tuple[str, ...],
        ends: ModelEnds,
        layers: int,
        after: PrecedingSlot | None,
    ) -> IsolatedTimes:
        key = micro_batch, works, ends, layers, after
        if key not in self._known:
            ops, following = self.slot_program.slots(micro_batch, works, ends, layers)
            durations = [self._ticks[_in_first_layer(op)] for op in ops]
            if share := self.op_bounds.fabric.compute_share:
                carry_in = self._carry_in(after, layers) if after is not None else {}
                interference = interference_of(ops, following, tuple(carry_in))
                durations = interference.slowed(durations, share, np.minimum, _rounded, carry_in)
            self._known[key] = isolated_times(ops, following, durations, len(self.some.rows))
        return self._known[key]

    def _carry_in(self, before: PrecedingSlot, layers: int) -> dict[str, Ticks]:
        """Ticks of the collectives in flight after a slot of the last micro-batch, by stream."""
        work, ends = before
        ops, following = self.slot_program.slots(self._last, (work,), ends, layers)
        durations = [self._ticks[_in_first_layer(op)] for op in ops]
        return interference_of(ops, following).carry_out(durations, {})

    @cached_property
    def _known(
        self,
    ) -> dict[tuple[int, tuple[str, ...], ModelEnds, int, PrecedingSlot | None], IsolatedTimes]:
        return {}

    @cached_property
    def _ticks(self) -> Mapping[Identity, Ticks]:
        # A pipeline's stages meet in more ranks than those of one, which may have no time.
        others = ACROSS_STAGES if bool((self.entries.pipe > 1).any()) else ()
        every = (op for op in self.some.program.ops if op.label not in others)
        return {op.identity: self.op_bounds.ticks(self.some, op) for op in every}


def _in_first_layer(op: Op) -> Identity:
    """The identity of an op's counterpart in the first layer, which takes as long."""
    m, part, again, label = op.identity
    return m, layer_part(0) if part.is_layer else part, again, label


def _rounded(ticks: NDArray[np.float64]) -> Ticks:
    return np.rint(ticks).astype(np.int64)


def isolated_times(
    ops: Sequence[Op], following: Sequence[Waits], durations: Sequence[Ticks], lanes: int
) -> IsolatedTimes:
    """Simulate slots: an op starts when the op before it on its stream and its waits have ended."""
    zero = np.zeros(lanes, dtype=np.int64)
    clocks: dict[str, Ticks] = {COMPUTE: zero}
    ends: list[Ticks] = []
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


def _of_layer(ops: Sequence[Op], durations: Sequence[Ticks], tail: int, zero: Ticks) -> Ticks:
    """The least ticks of one layer's deferred ops at the end, if all layers have some.

    Interference lengthens one of them, but not the others, so the least is taken.
    """
    ticks: dict[int, Ticks] = {}
    for op, own in zip(ops[tail:], durations[tail:], strict=True):
        layer = op.part.layer
        ticks[layer] = ticks.get(layer, zero) + own
    ticks.pop(NONE, None)
    return zero if len(ticks) < FEW else np.minimum.reduce(list(ticks.values()))


def _growth(ops: Sequence[Op], ends: Sequence[Ticks], zero: Ticks) -> Ticks:
    """By how much ops are later from one middle layer to the next; 0 where they disagree."""
    at: dict[int, dict[Identity, Ticks]] = {}
    for op, end in zip(ops, ends, strict=True):
        sums = op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE)
        if op.part.is_layer and op.kind != "accumulate" and not sums:
            at.setdefault(op.part.layer, {})[_in_first_layer(op)] = end
    if len(at) < FEW:
        return zero
    order = list(at)  # in issue order: backward passes go from the last layer to the first
    a, b, c, d = (at[order[number]] for number in (3, 4, 5, 6))
    shifts = [late[name] - early[name] for early, late in ((a, b), (b, c), (c, d)) for name in b]
    least = np.minimum.reduce(shifts)
    return np.where(np.maximum.reduce(shifts) == least, least, zero)
