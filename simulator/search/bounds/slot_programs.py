"""The ops of slots of plans with the same program, and their waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cache, cached_property, partial
from itertools import groupby
from typing import Any

from simulator.search.bounds.batched_programs import (
    BatchedProgram,
    differs_apart,
    is_left_out,
    within_parts,
)
from simulator.search.bounds.isolated_times import Slots
from simulator.search.bounds.layer_kinds import is_own_layer, kind_of
from simulator.search.bounds.layouts import ChunkLayers, ModelEnds
from topologies.records import record
from workload.dataflow import waits
from workload.gpt import GPT
from workload.grid import WITHIN_STAGE
from workload.lowering import lower
from workload.lowering.chunk import Keeps
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, MODEL, NONE, STEP, Buffer, Identity, Op, Part
from workload.overlaps import WORKS, concerning
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour, of_lowering, with_behaviour
from workload.passes.table import overlap_slot, overlap_step
from workload.program import Program
from workload.recipes.table import NO_RECIPE

SIZES = (*WITHIN_STAGE, "mbs", "batch", "ep")
ENDS = ModelEnds(first=True, last=True).parts
MIDDLE = -2  # in place of a micro-batch: any between the first and the last


@record(slots=False)
class LoweredSlots:
    """Rows whose program is lowered once for all overlaps. `known` keeps slots for other programs
    with the same ops; the stack's `behaviour` is put on it after the overlaps, as lowering does."""

    plain: BatchedProgram
    known: dict[tuple[object, ...], Slots] = field(default_factory=dict)
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR

    def few(self, layers: ChunkLayers) -> Program:
        """The first row's program with these layers, and those that they leave out, as one
        stage."""
        if layers not in self._few:
            program = self.plain.program
            own: dict[str, Any] = {
                key: int(self.plain.values(getattr(program.plan, key))[0]) for key in SIZES
            }
            gpt, behaviour = layers.model(program.gpt), of_lowering(self.behaviour)
            plan = program.plan.changed(**own)
            self._few[layers] = lower(gpt, plan, behaviour=behaviour)
        return self._few[layers]

    @cached_property
    def _few(self) -> dict[ChunkLayers, Program]:
        return {}


@record(slots=False)
class SlotProgram:
    """The slots of some rows with these overlaps: all run the same."""

    lowered: LoweredSlots
    overlap: tuple[str, ...]

    @cached_property
    def some(self) -> BatchedProgram:
        """The rows with their program."""
        plain = self.lowered.plain
        program = self._overlapped(plain.program, self.overlap)
        return replace(plain, program=program, rings={}, sizes={}, notes={})

    def _overlapped(
        self, program: Program, overlap: tuple[str, ...], keeps: Keeps | None = None
    ) -> Program:
        return overlapped(program, overlap, self.lowered.behaviour, keeps)

    def slots(
        self, micro_batch: int, works: tuple[str, ...], ends: ModelEnds, layers: ChunkLayers
    ) -> Slots:
        """The ops of a micro-batch's slots through a chunk of these layers, and what they wait for;
        sizes are those of any plan. One in the MIDDLE adds to gradients, as the last does, and does
        not sum them over ranks."""
        asked = ends, layers, self._marks(micro_batch, works)
        if asked not in self.lowered.known:
            self.lowered.known[asked] = self._slots(micro_batch, works, ends, layers)
        return self.lowered.known[asked]

    def _marks(self, micro_batch: int, works: tuple[str, ...]) -> tuple[object, ...]:
        """Programs that agree in these run the same in some slots, whatever their sizes and however
        many layers: the ops of one layer, and the overlaps that move any."""
        if (micro_batch, works) not in self._marked:
            program, number = self.some.program, self._number(micro_batch)
            switches = concerning(self.overlap, works, last=self._is_last(micro_batch))
            ops = (
                op
                for op in program.ops
                if op.block.micro_batch == number and op.block.work in works
            )
            self._marked[micro_batch, works] = (
                (
                    program.plan.micro_batches,
                    program.plan.pipeline.schedule,
                    micro_batch,
                    works,
                    switches,
                ),
                tuple(map(_mark, ops)),
            )
        return self._marked[micro_batch, works]

    @cached_property
    def _marked(self) -> dict[tuple[int, tuple[str, ...]], tuple[object, ...]]:
        return {}

    def _slots(
        self, micro_batch: int, works: tuple[str, ...], ends: ModelEnds, layers: ChunkLayers
    ) -> Slots:
        parts = ["layer", *ends.parts]
        gpt, every = self.lowered.few(layers).gpt, self._ops(micro_batch, ends, layers)
        ops = [
            op
            for work in works
            for op in every[work]
            if _part(op, gpt) in parts and (ends.alone or not differs_apart(op, self.some))
            if not self._is_unknown_sum(op)
        ]
        return Slots(ops, waits(ops), layers, self.some.program.gpt.layers)

    def _is_unknown_sum(self, op: Op) -> bool:
        """Whether an op sums gradients of an end that the whole model sums in another's bucket, as
        those of the embedding that further tokens add to last: its size is not known."""
        own = op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE) and not op.part.is_layer
        return own and op.identity not in self._identities

    @cached_property
    def _identities(self) -> frozenset[Identity]:
        return frozenset(op.identity for op in self.some.program.ops)

    def _is_last(self, micro_batch: int) -> bool:
        return micro_batch == self.some.micro_batches - 1

    def _number(self, micro_batch: int) -> int:
        """The one of the program that has the ops of a micro-batch."""
        return self.some.micro_batches - 1 if micro_batch == MIDDLE else micro_batch

    def _ops(
        self, micro_batch: int, ends: ModelEnds, layers: ChunkLayers
    ) -> Mapping[str, list[Op]]:
        """A micro-batch's ops of the first row's program of these layers, by work. Ends that a
        chunk lacks are left out before overlaps, which move ops of one part behind another's."""
        if (micro_batch, ends, layers) not in self._known:
            number = self._number(micro_batch)
            program = self.lowered.few(layers)
            keeps = keeping(ends, program.gpt)
            found: dict[str, list[Op]] = {}
            switches = concerning(self.overlap, WORKS, last=self._is_last(micro_batch))
            if program.plan.training.recipe != NO_RECIPE:  # whose casts follow from all ops
                program = self._overlapped(program, switches, keeps)
            own = tuple(
                op
                for op in program.ops
                if _is_of(op, number, layers.skip) and keeps(op, program.buffers)
            )
            some = replace(program, ops=own)
            if program.plan.training.recipe == NO_RECIPE:
                some = self._overlapped(some, switches)
            for op in some.ops:
                if op.block != STEP:
                    found.setdefault(op.block.work, []).append(op)
            self._known[micro_batch, ends, layers] = found
        return self._known[micro_batch, ends, layers]

    @cached_property
    def _known(self) -> dict[tuple[int, ModelEnds, ChunkLayers], Mapping[str, list[Op]]]:
        return {}


def overlapped(
    program: Program,
    overlap: tuple[str, ...],
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    keeps: Keeps | None = None,
) -> Program:
    """The program of one stage, lowered without overlaps and behaviour, then with both. That of a
    recipe is lowered again, of what it `keeps`, as its casts come behind overlaps and before other
    behaviour."""
    plan = program.plan.changed(overlap=overlap)
    if plan.training.recipe != NO_RECIPE:
        whole = lower(program.gpt, plan, behaviour=within_parts(behaviour), keeps=keeps)
        return replace(whole, ops=tuple(op for op in whole.ops if not is_left_out(op, behaviour)))
    ops: list[Op] = []
    for slot, own in groupby(program.ops, lambda op: program.slot_of.get(op.block)):
        some = list(own)
        ops += overlap_slot(some, overlap) if slot is not None else some
    ops = overlap_step(ops, overlap, program.buffers, program.slot_of)
    if behaviour != PLAIN_BEHAVIOUR:
        kept = [op for op in ops if not is_left_out(op, behaviour)]
        ops, added = with_behaviour(kept, program.buffers, within_parts(behaviour))
        program = _with_buffers(program, added)
    return replace(program, plan=plan, ops=tuple(ops))


def _with_buffers(program: Program, added: Mapping[str, Buffer]) -> Program:
    """The program with further buffers, or others of these names."""
    if not added:
        return program
    buffers = {**program.buffers, **added}
    known = dict(zip(program.buffers, program.known_nbytes, strict=False))
    known |= {name: buffer.nbytes for name, buffer in added.items()}
    sizes = tuple(known[name] for name in buffers) if program.known_nbytes else ()
    return replace(program, buffers=buffers, known_nbytes=sizes)


def _mark(op: Op) -> tuple[object, ...]:
    return op.name, op.kind, op.block, op.stream, op.axes, op.reads, op.writes


def _is_of(op: Op, micro_batch: int, skip: int) -> bool:
    """Whether an op is of a micro-batch, or of none, and not of the first layers."""
    part = op.block.part
    return op.block.micro_batch in (micro_batch, NONE) and not (part.is_layer and part.layer < skip)


def keeping(ends: ModelEnds, gpt: GPT) -> Keeps:
    """A test of ops: whether a chunk with these ends has anything that an op is of, or is on."""
    return partial(_has, cache(partial(kind_of, gpt=gpt)), {*ENDS} - {*ends.parts})


def _has(
    kind: Callable[[Part], str], lacking: set[str], op: Op, buffers: Mapping[str, Buffer]
) -> bool:
    part = op.part if op.block == STEP else op.block.part
    if part == MODEL:
        kinds = {kind(buffers[name].part) for name in op.reads}
        return not kinds or not kinds <= lacking
    return kind(part) not in lacking


def _part(op: Op, gpt: GPT) -> str:
    part = op.part if op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE) else op.block.part
    return part.kind if is_own_layer(part, gpt) else kind_of(part, gpt)
