"""Memory, FLOPs and payload of a stage's slots, from a few of its micro-batches.

The first micro-batch, one in the middle and the last stand for all: the first overwrites gradients
to which the others add, and after the last the gradients are summed over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.engine.columns import Columns, Lists
from simulator.engine.stream_graph import StreamGraph, Totals, graph_among
from simulator.engine.whole_program import with_every_layer
from topologies.records import record
from topologies.session import session_cached
from workload.gpt import GPT
from workload.lowering import lower_slots
from workload.lowering.few_layers import FewLayers, few_layers, in_flight
from workload.memory import on_device
from workload.op import BACKWARD, FORWARD, NONE, ROLES, Op
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import StackBehaviour
from workload.pipeline.order import WORKS, Order
from workload.pipeline.schedule import Slot
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Bytes, Indices
from workload.stages import samples


@dataclass(frozen=True, eq=False)
class SlotOps:
    """The ops of a slot, or of the step's end: their `places` among those of all layers, which
    `columns` has; `program` has those that were lowered.

    `born` and `gone` are the bytes by role, (roles, ops of `columns`), that each op allocates and
    frees.
    """

    program: Program
    columns: Columns
    places: Indices
    born: Bytes
    gone: Bytes

    @property
    def count(self) -> int:
        """How many ops there are."""
        return len(self.places)

    @property
    def ops(self) -> Sequence[Op]:
        """The ops, those that stand for others with their own names."""
        return self.graph.ops

    @cached_property
    def graph(self) -> StreamGraph:
        """Their stream graph."""
        return graph_among(self.columns, self.places)

    @cached_property
    def totals(self) -> Totals:
        """What is counted of them, with the FLOPs of all ranks of the stage."""
        return self.graph.totals(self.program.plan.grid.ranks // self.program.plan.pp)

    @cached_property
    def memory(self) -> tuple[Bytes, Bytes, int]:
        """Bytes by role beyond those in use before: at the op with the most on the device and after
        the last op; and the place of the former, NONE where there are no ops. Buffers of messages
        are counted by `stage_memory`."""
        if not self.count:
            nothing = np.zeros(len(ROLES), dtype=np.int64)
            return nothing, nothing, NONE
        born, gone = self.born[:, self.places], self.gone[:, self.places]
        after = (born - gone).cumsum(axis=1)
        during = after + gone
        at = int(on_device(during, 0).argmax())
        return during[:, at], after[:, -1], int(self.places[at])


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
    columns: Columns
    slots: Sequence[Slot]
    few: FewLayers | None = None

    @cached_property
    def end(self) -> SlotOps:
        """What comes after all slots."""
        return self._part(np.flatnonzero(self.columns.block == NONE))

    def _part(self, places: Indices) -> SlotOps:
        return SlotOps(self.program, self.columns, places, *self._changes)

    @cached_property
    def _changes(self) -> tuple[Bytes, Bytes]:
        return self.columns.lives.changes(self.program.nbytes)

    def like(self, chunk: int) -> int:
        """The chunk whose slots stand for those of a chunk."""
        return chunk if self.few is None else self.few.like[chunk]

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
        chunk = order.chunk if self.few is None else np.array(self.few.like)[order.chunk]
        return Parts(self.distinct, known[order.work, chunk, like])

    @cached_property
    def distinct(self) -> list[SlotOps]:
        """What stands for slots, in the order of the sampled ones."""
        return list(self._parts.values())

    def counts(self, micro_batches: int) -> list[int]:
        """How many slots of a step of so many micro-batches each sampled one stands for."""
        count = self.plan.micro_batches
        middle = 1 + micro_batches - len(samples(self.plan)) // self.plan.passes
        each = [1 if slot.micro_batch % count in (0, count - 1) else middle for slot in self._parts]
        if self.few is None:
            return each
        chunks = [self.few.like.count(slot.chunk) for slot in self._parts]
        return [own * count for own, count in zip(each, chunks, strict=True)]

    def totals(self, micro_batches: int) -> Totals:
        """What is counted in a step; messages, and the waits for them, left out."""
        pairs = [(self.end, 1), *zip(self.distinct, self.counts(micro_batches), strict=True)]
        payload: dict[str, int] = {}
        for part, count in pairs:
            for key, nbytes in part.totals.payload.items():
                payload[key] = payload.get(key, 0) + count * nbytes
        return Totals(
            sum(count * part.totals.ops for part, count in pairs),
            payload,
            sum(count * part.totals.model_flops for part, count in pairs),
            sum(count * part.totals.flops for part, count in pairs),
        )

    def ending(self, last: Slot) -> SlotOps:
        """The ops of the last slot and of what comes after all slots."""
        part = self.part(last)
        if part not in self._endings:
            self._endings[part] = self._part(np.concatenate([part.places, self.end.places]))
        return self._endings[part]

    @cached_property
    def _endings(self) -> dict[SlotOps, SlotOps]:
        return {}

    def places_in_program(self, part: SlotOps) -> Indices:
        """Where the ops of a part stand among those of all slots, those of a pair by their
        names."""
        if part.columns is self.columns:
            return part.places
        return np.array([self._index[op.name] for op in part.ops], dtype=np.int64)

    @property
    def waits(self) -> Lists:
        """What each op waits for on other streams, of whichever slot."""
        return self.columns.flow.waits

    @cached_property
    def _index(self) -> dict[str, int]:
        return {op.name: index for index, op in enumerate(self.program.ops)}

    @cached_property
    def _parts(self) -> dict[Slot, SlotOps]:
        columns = self.columns
        order = np.argsort(columns.of_slot, kind="stable")
        bounds = np.searchsorted(columns.of_slot[order], np.arange(len(columns.slots) + 1)).tolist()
        places = {
            slot: order[a:b] for slot, (a, b) in zip(columns.slots, pairwise(bounds), strict=True)
        }
        return {slot: self._part(places.get(slot, order[:0])) for slot in self.slots}

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
        every = (op for op in self.program.ops if op.is_message and op.direction == direction)
        return next(every, None)

    def persistent(self, micro_batches: int) -> Bytes:
        """Bytes by role that are there all the time, with the tokens of so many micro-batches."""
        nbytes = self.program.nbytes
        sampled = len(samples(self.plan)) // self.plan.passes
        further = (micro_batches - sampled) * self.columns.inputs(nbytes)
        return np.asarray(self.columns.persistent(nbytes) + further)


def kind_of(
    gpt: GPT, plan: Plan, stage: int, order: Order, forms: Forms, behaviour: StackBehaviour
) -> StageKind:
    """The kind of a stage that runs these slots."""
    chosen = order.some(np.isin(order.micro_batch, samples(plan))).slots
    if forms:
        return _lowered(gpt, plan, stage, tuple(chosen), forms, behaviour)
    return _kept(gpt, plan, stage, tuple(chosen), behaviour)


@session_cached(16)
def _kept(
    gpt: GPT, plan: Plan, stage: int, slots: tuple[Slot, ...], behaviour: StackBehaviour
) -> StageKind:
    return _lowered(gpt, plan, stage, slots, PLAIN, behaviour)


def _lowered(
    gpt: GPT,
    plan: Plan,
    stage: int,
    slots: tuple[Slot, ...],
    forms: Forms,
    behaviour: StackBehaviour,
) -> StageKind:
    def lowered(few: FewLayers | None) -> Program:
        some = slots if few is None else [slot for slot in slots if few.has_slots(slot.chunk)]
        return lower_slots(gpt, plan, stage, some, forms, behaviour, few=few, apart=True)

    attempts = few_layers(gpt, plan, stage, behaviour)
    program, columns, found = with_every_layer(lowered, attempts, in_flight(plan, behaviour))
    some = [slot for slot in slots if found is None or found.has_slots(slot.chunk)]
    return StageKind(plan, program, columns, some, found)
