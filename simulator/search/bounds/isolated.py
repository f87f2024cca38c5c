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

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from simulator.search.bounds.batched_programs import BatchedProgram, differs_apart
from simulator.search.bounds.isolated_times import (
    IsolatedTimes,
    Slots,
    isolated_times,
    issued_times,
)
from simulator.search.bounds.layer_kinds import LAYER, kind_of
from simulator.search.bounds.layouts import EXPERTS, OWN, REST, ChunkLayers, ModelEnds
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.slot_programs import MIDDLE, SlotProgram
from simulator.search.bounds.stream_bound import INSIDE, Entries
from simulator.search.bounds.unsupported import REDUCED_ACROSS_STAGES
from topologies.records import record
from workload.lowering.layers.mixers.experts.balance import TOTAL as BALANCE
from workload.models import moe
from workload.op import (
    COMPUTE,
    FORWARD,
    MODEL,
    STEP,
    Identity,
    Op,
)
from workload.sizes.arrays import Bytes, Counts, Ticks

Chunk = tuple[ModelEnds, ChunkLayers]
PrecedingSlot = tuple[str, Chunk]  # the work of a slot of the last micro-batch, and its chunk
FIRST_ONE, BETWEEN, LAST_ONE = "first", "between", "last"  # of the micro-batches
Place = tuple[str, Chunk, str]  # a work, a chunk, and one of these
NORM = "norm.squares"
TABLE = "embed.w"
PLACE_OF = {"embed": "first", "head": "last"}


@record(slots=False)
class IsolatedBlocks:
    """Slots of `some` rows, each with all the streams that its plan gives it."""

    op_bounds: OpBounds
    some: BatchedProgram
    entries: Entries
    slot_program: SlotProgram

    def slots(self, work: str, ends: ModelEnds, which: str = OWN, *, middle: bool = False) -> Ticks:
        """See `stream_bound.Slots`."""
        key = work, ends, which, middle and work != FORWARD
        if key not in self._slots:
            self._slots[key] = self._chunks(MIDDLE if key[-1] else 0, (work,), ends, which)[0]
        return self._slots[key]

    @cached_property
    def _slots(self) -> dict[tuple[str, ModelEnds, str, bool], Ticks]:
        return {}

    def slot(self, at: int, place: Place, *, after: PrecedingSlot | None) -> tuple[int, int]:
        """The slot of one entry's chunk, with the collectives in flight after a slot of the last
        micro-batch right before it: the end of its compute, and of all its streams."""
        work, (ends, layers), which = place
        few, more = layers.shortened()
        micro_batch = {FIRST_ONE: 0, BETWEEN: MIDDLE, LAST_ONE: self._last}[which]
        micro_batch = 0 if work == FORWARD and which == BETWEEN else micro_batch
        times = self._few_layers(micro_batch, (work,), ends, few, after)
        compute, every = times.ends(self.entries.lane[at : at + 1], more)
        return int(compute[0]), int(every[0])

    def ending(self, ends: ModelEnds, behind: Ticks) -> Ticks:
        """See `stream_bound.Slots`."""
        works, chunks = tuple(self.entries.works), self.entries.vpp
        several = bool((chunks > 1).any())
        rest = sum(self._chunks(self._last, (work,), ends, REST)[0] for work in works if several)
        forward = self._chunks(self._last, works[:1], ends)[0]
        compute, every = self._chunks(self._last, works[1:], ends)
        before, after = self.step(ends)
        over = compute + np.maximum(before, behind)
        # The last of several chunks is through before others are: its streams may have caught up.
        ends_all = (chunks == 1) | ends.first
        over = np.where(ends_all, np.maximum(over, every), over)
        return np.asarray(rest + forward + over + after)

    def message_bytes(self, at: int) -> int:
        """Bytes that a stage of an entry sends to the next one: the residual stream."""
        program = self.some.program
        stream = next(op for op in program.ops if op.label == "down.add").writes[0]
        return int(self.some.nbytes(stream)[self.entries.lane[at]])

    def step(self, ends: ModelEnds) -> tuple[Ticks, Ticks]:
        """What follows all slots: sums of gradients, beside which collectives may be in flight; and
        from the norm on what waits for all of them."""
        return self._step(self.entries.of_stage(ends), ends)

    def steps_of_stages(self, at: int) -> list[tuple[int, int]]:
        """What follows all slots on each stage of one entry (see `step`), without the model's
        ends."""
        found = []
        for counts in self.entries.stages_of(at):
            key = tuple(counts.items())
            if key not in self._steps:
                like = np.ones_like(self.entries.pp)
                each = {kind: count * like for kind, count in counts.items()}
                self._steps[key] = self._step(each, INSIDE)
            before, after = self._steps[key]
            found.append((int(before[at]), int(after[at])))
        return found

    @cached_property
    def _steps(self) -> dict[tuple[tuple[str, int], ...], tuple[Ticks, Ticks]]:
        return {}

    def _step(self, layers: Mapping[str, Counts], ends: ModelEnds) -> tuple[Ticks, Ticks]:
        e, gpt, alone = self.entries, self.some.program.gpt, ends.alone
        before = np.zeros(len(e.lane), dtype=np.int64)
        total: dict[str, Ticks] = {COMPUTE: before}
        for op in self.some.program.ops:
            kind = kind_of(op.part, gpt)
            if op.block != STEP or (kind in PLACE_OF and kind not in ends.parts):
                continue
            if not alone and differs_apart(op, self.some):
                continue
            if kind in layers:
                ticks = layers[kind] * self._ticks[op.identity][e.lane]
            elif op.purpose in REDUCED_ACROSS_STAGES and not alone:
                wide = replace(op, axes=(*op.axes, "pp"))  # more ranks may be faster than few
                ticks = self.op_bounds.ticks(self.some, wide)[e.lane]
            else:
                ticks = self._whole(op, layers, alone)
            if op.label == NORM:
                before, total = total[COMPUTE], {COMPUTE: np.zeros_like(before)}
            total[op.stream] = total.get(op.stream, 0) + ticks
        return before, np.asarray(np.maximum.reduce(list(total.values())))

    def _whole(self, op: Op, layers: Mapping[str, Counts], alone: bool) -> Ticks:
        """An op on the parameters of all layers, and with `alone` on those of the model's ends;
        else the fastest of one end, the other and none, since a collective on more bytes may be
        faster than on fewer where the library changes its algorithm between them, and since a stage
        without the ends has no op that is on nothing else."""
        held = self._operands(op)
        kinds = [kind for kind in layers if kind in held]
        if not kinds:
            return self._of_no_kind(op, layers, alone, held)
        nothing, each = self.some.values(0), [held[kind] for kind in kinds]
        first, last = held.get("first", nothing), held.get("last", nothing)
        rest = self.some.values(op.nbytes) - sum(each) - first - last
        last_apart = last + held.get("shared", nothing)
        ends = [first + last] if alone else [nothing, first, last_apart]
        result = np.zeros(len(self.entries.lane), dtype=np.int64)
        table, which = np.unique([layers[kind] for kind in kinds], axis=1, return_inverse=True)
        for number, counts in enumerate(table.T.tolist()):
            chosen = which.ravel() == number
            own = rest + sum(count * nbytes for count, nbytes in zip(counts, each, strict=True))
            ways = [self._on_bytes(op, own + end) for end in ends]
            result[chosen] = np.minimum.reduce(ways)[self.entries.lane[chosen]]
        return result

    def _of_no_kind(
        self, op: Op, layers: Mapping[str, Counts], alone: bool, held: Mapping[str, Bytes]
    ) -> Ticks:
        """An op on nothing of a layer's own. A stage may lack one on what lies at the model's ends
        alone, and without a layer with experts that on their losses."""
        ticks = self._ticks[op.identity][self.entries.lane]
        if alone:
            return ticks
        if op.part == MODEL and not held.keys().isdisjoint(PLACE_OF.values()):
            return np.zeros_like(ticks)
        if BALANCE in op.reads:
            alike = (LAYER,) if moe.has_experts(self.some.program.gpt, 0) else ()
            having = sum(layers.get(kind, 0) for kind in (*EXPERTS, *alike))
            return np.where(having, ticks, 0)
        return ticks

    def _on_bytes(self, op: Op, nbytes: Bytes) -> Ticks:
        """An op on so many bytes; a stage without any has no such op."""
        return np.where(nbytes > 0, self.op_bounds.of_bytes(self.some, op, nbytes), 0)

    def _operands(self, op: Op) -> dict[str, Bytes]:
        """Bytes of an op's operands by part of the model: a kind of layer, "first" or "last"; and
        "shared" for the embedding's table where the last stage holds it too."""
        names = (*op.reads, *op.writes)
        if op.is_collective:
            names = op.writes if op.kind == "all_gather" else op.reads
        held: dict[str, Bytes] = {}
        for name in names:
            buffer = self.some.program.buffers[name]
            kind = kind_of(buffer.part, self.some.program.gpt)
            part = PLACE_OF.get(kind, kind)
            own = self.some.nbytes(name)
            is_table = self._on_both_ends and buffer.parameter == TABLE
            for key in (part, "shared") if is_table else (part,):
                held[key] = held[key] + own if key in held else own
        return held

    @property
    def _on_both_ends(self) -> bool:
        gpt = self.some.program.gpt
        return gpt.tied or gpt.mtp.layers > 0

    @property
    def _last(self) -> int:
        return self.some.micro_batches - 1

    def _chunks(
        self, micro_batch: int, works: tuple[str, ...], ends: ModelEnds, which: str = OWN
    ) -> tuple[Ticks, Ticks]:
        """The end of the compute stream, and of all streams, after some slots of each entry's chunk
        with these ends; of several chunks, their sum."""
        e, found = self.entries, np.zeros((2, len(self.entries.lane)), dtype=np.int64)
        for chosen, chunks in e.chunks(ends, which):
            for layers, count in chunks.items():
                few, more = layers.shortened()
                own = ends if which == OWN else INSIDE
                times = self._few_layers(micro_batch, works, own, few, None)
                found[:, chosen] += count * np.array(times.ends(e.lane[chosen], more))
        return found[0], found[1]

    def _few_layers(
        self,
        micro_batch: int,
        works: tuple[str, ...],
        ends: ModelEnds,
        layers: ChunkLayers,
        after: PrecedingSlot | None,
    ) -> IsolatedTimes:
        key = micro_batch, works, ends, layers, after
        if key not in self._known:
            slots = self.slot_program.slots(micro_batch, works, ends, layers)
            durations = alone = self._durations(slots)
            if share := self.op_bounds.fabric.compute_share:
                carry_in = self._carry_in(after) if after is not None else {}
                interference = slots.interference(tuple(carry_in))
                durations = interference.slowed(durations, share, carry_in)
            times = isolated_times(slots, durations)
            if self._issued:
                issued = self._by_op(slots, self._issued)
                times = replace(times, issued=issued_times(slots, alone, durations, issued))
            self._known[key] = times
        return self._known[key]

    def _carry_in(self, before: PrecedingSlot) -> dict[str, Ticks]:
        """Ticks of the collectives in flight after a slot of the last micro-batch, by stream."""
        work, (ends, layers) = before
        slots = self.slot_program.slots(self._last, (work,), ends, layers.shortened()[0])
        return slots.interference().carry_out(self._durations(slots), {})

    def _durations(self, slots: Slots) -> Ticks:
        """Isolated ticks, (ops, lanes)."""
        return self._by_op(slots, self._ticks)

    def _by_op(self, slots: Slots, known: Mapping[Identity, Ticks]) -> Ticks:
        """What is known of ops, (ops, lanes)."""
        identities, sort = slots.sorts
        each = np.zeros((len(identities), len(self.some.rows)), dtype=np.int64)
        for own, identity in zip(each, identities, strict=True):
            own[:] = known[identity]
        return each[sort]

    @cached_property
    def _known(self) -> dict[tuple[object, ...], IsolatedTimes]:
        return {}

    @cached_property
    def _ticks(self) -> Mapping[Identity, Ticks]:
        # A pipeline's stages meet in more ranks than those of one, which may have no time.
        others = REDUCED_ACROSS_STAGES if bool((self.entries.pp > 1).any()) else ()
        every = (op for op in self.some.program.ops if op.purpose not in others)
        return {op.identity: self.op_bounds.ticks(self.some, op) for op in every}

    @cached_property
    def _issued(self) -> Mapping[Identity, Ticks]:
        """For how many ticks the host issues each op; nothing if it is never the bottleneck."""
        each = {
            op.identity: self.op_bounds.host_ticks(self.some, op) for op in self.some.program.ops
        }
        if all(ticks is None for ticks in each.values()):
            return {}
        none = self.some.values(0)
        return {identity: none if ticks is None else ticks for identity, ticks in each.items()}
