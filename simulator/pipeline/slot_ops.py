"""Memory, FLOPs and payload of a stage's slots, from a few of its micro-batches.

The first micro-batch, one in the middle and the last stand for all: the first overwrites gradients
to which the others add, and after the last the gradients are summed over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.engine.columns import changes_of, columns_of
from simulator.engine.interference import FENCE
from simulator.engine.stream_graph import StreamGraph, graph_among
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import kept_slots, lower_slots
from workload.memory import on_device
from workload.op import BACKWARD, FORWARD, NONE, ROLES, Op
from workload.passes.matmul_forms import Forms
from workload.passes.stack import StackBehaviour
from workload.pipeline.order import WORKS, Order
from workload.pipeline.schedule import Slot
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Bytes, Indices
from workload.stages import samples
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


class Parts(NamedTuple):
    """What stands for each slot of an order: the different ones, and for each slot which it is."""

    distinct: list[SlotOps]
    which: Indices

    @classmethod
    def of(cls, each: Sequence[SlotOps]) -> Parts:
        """Tell the different parts from each other, given what stands for each slot."""
        number: dict[SlotOps, int] = {}
        which = [number.setdefault(part, len(number)) for part in each]
        return cls(list(number), np.array(which, dtype=np.int64))

    @property
    def last(self) -> SlotOps:
        """What stands for the last slot."""
        return self.distinct[int(self.which[-1])]

    @property
    def each(self) -> list[SlotOps]:
        """What stands for each slot."""
        return [self.distinct[number] for number in self.which.tolist()]


def _codes(order: Order) -> Indices:
    """The place of each slot of an order, by work, chunk and micro-batch; NONE of others."""
    shape = len(WORKS), int(order.chunk.max()) + 1, int(order.micro_batch.max()) + 1
    found = np.full(shape, NONE, dtype=np.int64)
    found[order.work, order.chunk, order.micro_batch] = np.arange(len(order))
    return found


@record(slots=False)
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
        return self.parts_of(Order.of([slot])).last

    def parts_of(self, order: Order) -> Parts:
        """What stands for each slot of an order."""
        last = self.plan.micro_batches - 1
        own = order.micro_batch % (last + 1)
        middle = (own != 0) & (own != last)
        like = np.where(middle, order.micro_batch - own + min(1, last), order.micro_batch)
        known = _codes(Order.of(self._parts))
        return Parts(self.distinct, known[order.work, order.chunk, like])

    @cached_property
    def distinct(self) -> list[SlotOps]:
        """What stands for slots, in the order of the sampled ones."""
        return list(self._parts.values())

    def counts(self, micro_batches: int) -> list[int]:
        """How many slots of a step of so many micro-batches each sampled one stands for."""
        count = self.plan.micro_batches
        middle = 1 + micro_batches - len(samples(self.plan)) // self.plan.passes
        return [1 if slot.micro_batch % count in (0, count - 1) else middle for slot in self._parts]

    def flops(self, micro_batches: int) -> tuple[int, int]:
        """FLOPs of all ranks of a stage in a step, without and with recomputation."""
        pairs = zip(self.distinct, self.counts(micro_batches), strict=True)
        each = [[count * flops for flops in part.flops] for part, count in pairs]
        model, hardware = (sum(column) for column in zip(*each, self.end.flops, strict=True))
        return model, hardware

    def volume(self, micro_batches: int) -> tuple[int, dict[str, int]]:
        """How many ops a rank has in a step, and the payload of its collectives by axes;
        messages, and the waits for them, left out."""
        ops, volume = len(self.end.ops), dict(self.end.comm_bytes)
        for part, count in zip(self.distinct, self.counts(micro_batches), strict=True):
            ops += count * len(part.ops)
            for key, nbytes in part.comm_bytes.items():
                volume[key] = volume.get(key, 0) + count * nbytes
        return ops, volume

    def ending(self, last: Slot) -> SlotOps:
        """The ops of the last slot and of what comes after all slots."""
        return self._part((*self.part(last).places, *self.end.places))

    def places_in_program(self, part: SlotOps) -> Indices:
        """Where the ops of a part stand in the program, those of a pair by their names."""
        if part.program is self.program:
            return np.array(part.places, dtype=np.int64)
        return np.array([self._index[op.name] for op in part.ops], dtype=np.int64)

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
        sampled = len(samples(self.plan)) // self.plan.passes
        return level + (micro_batches - sampled) * outline.inputs(nbytes)


def kind_of(
    gpt: GPT, plan: Plan, stage: int, order: Order, forms: Forms, behaviour: StackBehaviour
) -> StageKind:
    """The kind of a stage that runs these slots."""
    chosen = order.some(np.isin(order.micro_batch, samples(plan))).slots
    if forms:
        return StageKind(plan, lower_slots(gpt, plan, stage, chosen, forms, behaviour), chosen)
    return StageKind(plan, kept_slots(gpt, plan, stage, chosen, behaviour), chosen)


@memoized_on
def places_of(outline: Structure, slots: tuple[Slot, ...]) -> dict[Slot, tuple[int, ...]]:
    """The places of the ops of each of the slots, without what stands between slots."""
    columns = columns_of(outline)
    number = {slot: at for at, slot in enumerate(slots)}
    slot_of = (outline.slot_of.get(block) for block in columns.blocks)
    own = [NONE if slot is None else number[slot] for slot in slot_of]
    apart = [block.chunk != NONE for block in columns.blocks]
    sort = columns.sorts.of_op
    message, fence = (
        columns.sorts.numbers(each)[sort].astype(np.bool_)
        for each in (lambda op: op.is_message, lambda op: op.kind == FENCE)
    )
    which = np.where(columns.block == NONE, NONE, np.array(own)[columns.block])
    which[message | (fence & np.array(apart)[columns.block])] = NONE  # `is_between_slots`
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(slots) + 1)).tolist()
    places = order.tolist()
    return {slot: tuple(places[bounds[at] : bounds[at + 1]]) for slot, at in number.items()}


@memoized_on
def ends_of(outline: Structure) -> tuple[int, ...]:
    """The places of the ops that come after all slots."""
    return tuple(np.flatnonzero(columns_of(outline).block == NONE).tolist())
