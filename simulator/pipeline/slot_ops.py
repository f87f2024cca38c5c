"""Memory, FLOPs and payload of a stage's slots, from a few of its micro-batches.

The first micro-batch, one in the middle and the last stand for all: the first overwrites gradients
to which the others add, and after the last the gradients are summed over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.engine.columns import changes_of, columns_of
from simulator.engine.stream_graph import StreamGraph, graph_among
from workload.gpt import GPT
from workload.lowering import kept_slots, lower_slots
from workload.memory import on_device
from workload.op import BACKWARD, FORWARD, ROLES, STEP, Op
from workload.passes.matmul_forms import Forms
from workload.passes.stack import Habits
from workload.pipeline.pairs import is_between_slots
from workload.pipeline.schedule import Slot
from workload.pipeline.stages import samples
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Bytes
from workload.structure import Structure, memoized_on


@dataclass(frozen=True, eq=False)
class SlotOps:
    """The ops of a slot, or of the step's end: their `places` in the program.

    `born` and `gone` are the bytes by role, (roles, ops of the program), that each op allocates and
    frees.
    """

    program: Program
    places: tuple[int, ...]
    born: Bytes
    gone: Bytes

    @cached_property
    def ops(self) -> Sequence[Op]:
        """The ops."""
        return [self.program.ops[place] for place in self.places]

    @property
    def graph(self) -> StreamGraph:
        """Their stream graph."""
        return graph_among(self.program.outline, self.places)

    @cached_property
    def comm_bytes(self) -> dict[str, int]:
        """Payload of a rank's collectives, by axes."""
        volume: dict[str, int] = {}
        for op, count in self.graph.sorts:
            if op.is_collective:
                volume[op.time_key] = volume.get(op.time_key, 0) + count * op.nbytes
        return volume

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs of all ranks of the stage, of the model and in all."""
        ranks = self.program.plan.grid.ranks // self.program.plan.pp
        each = [count * (op.flops * ranks // op.replicas) for op, count in self.graph.sorts]
        beyond = [op.is_beyond_model for op, _ in self.graph.sorts]
        model = sum(flops for flops, further in zip(each, beyond, strict=True) if not further)
        return model, sum(each)

    @cached_property
    def memory(self) -> tuple[Bytes, Bytes, Op | None]:
        """Bytes by role beyond those in use before: at the op with the most on the device and after
        the last op; and the former op. Buffers of messages are counted by `stage_memory`."""
        if not self.places:
            nothing = np.zeros(len(ROLES), dtype=np.int64)
            return nothing, nothing, None
        own = np.array(self.places)
        born, gone = self.born[:, own], self.gone[:, own]
        after = (born - gone).cumsum(axis=1)
        during = after + gone
        at = int(on_device(during, 0).argmax())
        return during[:, at], after[:, -1], self.ops[at]


@dataclass(frozen=True)
class StageKind:
    """Stages that hold as many layers in each chunk, and the same ends of the model. `slots` are
    those of the sampled micro-batches; one may have no ops."""

    plan: Plan
    program: Program
    slots: Sequence[Slot]

    @cached_property
    def end(self) -> SlotOps:
        """What comes after all slots."""
        return self._part(ends_of(self.program.outline))

    def _part(self, places: tuple[int, ...]) -> SlotOps:
        return SlotOps(self.program, places, *self._changes)

    @cached_property
    def _changes(self) -> tuple[Bytes, Bytes]:
        return changes_of(self.program.outline, self.program.nbytes)

    def part(self, slot: Slot) -> SlotOps:
        """What stands for a slot of any micro-batch."""
        return self._parts[Slot(slot.work, slot.chunk, self.like(slot))]

    def parts_of(self, order: Sequence[Slot]) -> list[SlotOps]:
        """What stands for each slot of an order."""
        known = {(s.work, s.chunk, s.micro_batch): part for s, part in self._parts.items()}
        like = {m: self._like(m) for m in {slot.micro_batch for slot in order}}
        return [known[slot.work, slot.chunk, like[slot.micro_batch]] for slot in order]

    def like(self, slot: Slot) -> int:
        """The sampled micro-batch that stands for a slot's."""
        return self._like(slot.micro_batch)

    def _like(self, m: int) -> int:
        own, last = m % (self._last + 1), self._last
        return m if own in (0, last) else m - own + min(1, last)

    @cached_property
    def _last(self) -> int:
        return self.plan.micro_batches - 1

    @property
    def _sampled(self) -> int:
        """How many micro-batches of a pass over the batch are sampled."""
        return len(samples(self.plan)) // self.plan.passes

    def counts(self, micro_batches: int) -> dict[Slot, int]:
        """How many slots of a step of so many micro-batches each sampled one stands for."""
        middle = 1 + micro_batches - self._sampled
        ends, count = (0, self._last), self.plan.micro_batches
        return {slot: 1 if slot.micro_batch % count in ends else middle for slot in self._parts}

    def flops(self, micro_batches: int) -> tuple[int, int]:
        """FLOPs of all ranks of a stage in a step, without and with recomputation."""
        each = [
            [count * flops for flops in self.part(slot).flops]
            for slot, count in self.counts(micro_batches).items()
        ]
        model, hardware = (sum(column) for column in zip(*each, self.end.flops, strict=True))
        return model, hardware

    def volume(self, micro_batches: int) -> tuple[int, dict[str, int]]:
        """How many ops a rank has in a step, and the payload of its collectives by axes;
        messages, and the waits for them, left out."""
        ops, volume = len(self.end.ops), dict(self.end.comm_bytes)
        for slot, count in self.counts(micro_batches).items():
            ops += count * len(self.part(slot).ops)
            for key, nbytes in self.part(slot).comm_bytes.items():
                volume[key] = volume.get(key, 0) + count * nbytes
        return ops, volume

    def ending(self, last: Slot) -> SlotOps:
        """The ops of the last slot and of what comes after all slots."""
        return self._part((*self.part(last).places, *self.end.places))

    def awaited(self, op: Op) -> list[str]:
        """The names of what an op of the program waits for on other streams."""
        ops, waits = self.program.outline.ops, columns_of(self.program.outline).flow.waits
        at = self._index[op.name]
        return [ops[index].name for index in waits.of_one(at)]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {op.name: index for index, op in enumerate(self.program.outline.ops)}

    @cached_property
    def _parts(self) -> dict[Slot, SlotOps]:
        found = places_of(self.program.outline, tuple(self.slots))
        return {slot: self._part(places) for slot, places in found.items()}

    @cached_property
    def message_bytes(self) -> tuple[int, int]:
        """Bytes of the residual stream between two chunks, and of its gradient, as they are sent;
        0 where none is."""
        forward, backward = (0 if op is None else op.nbytes for op in self.messages)
        return forward, backward

    @cached_property
    def messages(self) -> tuple[Op | None, Op | None]:
        """A message between two chunks in either direction."""
        return self._message(FORWARD), self._message(BACKWARD)

    def _message(self, direction: str) -> Op | None:
        every = enumerate(self.program.outline.ops)
        places = (at for at, op in every if op.is_message and op.direction == direction)
        at = next(places, None)
        return None if at is None else self.program.ops[at]

    def persistent(self, micro_batches: int) -> Bytes:
        """Bytes by role that are there all the time, with the tokens of so many micro-batches."""
        outline, nbytes = self.program.outline, self.program.nbytes
        level = outline.persistent(nbytes)
        return level + (micro_batches - self._sampled) * outline.inputs(nbytes)


def kind_of(
    gpt: GPT, plan: Plan, stage: int, order: Sequence[Slot], forms: Forms, habits: Habits
) -> StageKind:
    """The kind of a stage that runs these slots."""
    chosen = [slot for slot in order if slot.micro_batch in samples(plan)]
    if forms:
        return StageKind(plan, lower_slots(gpt, plan, stage, chosen, forms, habits), chosen)
    return StageKind(plan, kept_slots(gpt, plan, stage, chosen, habits), chosen)


@memoized_on
def places_of(outline: Structure, slots: tuple[Slot, ...]) -> dict[Slot, tuple[int, ...]]:
    """The places of the ops of each of the slots, without what stands between slots."""
    places: dict[Slot, list[int]] = {slot: [] for slot in slots}
    for place, op in enumerate(outline.ops):
        slot = outline.slot_of.get(op.block)
        if slot is not None and not is_between_slots(op):
            places[slot].append(place)
    return {slot: tuple(found) for slot, found in places.items()}


@memoized_on
def ends_of(outline: Structure) -> tuple[int, ...]:
    """The places of the ops that come after all slots."""
    return tuple(place for place, op in enumerate(outline.ops) if op.block == STEP)
