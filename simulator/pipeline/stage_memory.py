"""A stage's peak memory over its whole schedule, slot by slot, exact to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.pipeline.schedule_messages import ScheduleMessages
from simulator.pipeline.slot_ops import Parts, SlotOps, StageKind
from workload.expert_loads.rank_sizes import sizes_of_ranks
from workload.memory import MemoryUse, on_device, use_of
from workload.naming import op_name
from workload.op import NONE, ROLES, Op, layer_part
from workload.pipeline.message_order import RECEIVE, SENT
from workload.pipeline.schedule import FORWARD, Slot
from workload.sizes.arrays import Bytes, Counts
from workload.stages import chunk_layers, places_of


def stage_peak(
    kind: StageKind,
    slots: Parts,
    messages: ScheduleMessages,
    stage: int,
    micro_batches: int,
) -> MemoryUse:
    """The most memory that a stage of this kind ever uses in a step of so many micro-batches, on
    its fullest rank, given what stands for its slots."""
    every = (_sized(kind, slots, nbytes) for nbytes in sizes_of_ranks(kind.program))
    peaks = (_peak(*own, messages, stage, micro_batches) for own in every)
    return max(peaks, key=lambda use: use.total_bytes)


def _sized(kind: StageKind, slots: Parts, nbytes: Sequence[int]) -> tuple[StageKind, Parts]:
    """A kind of stage and its slots with other sizes of buffers."""
    program = kind.program
    if nbytes is program.nbytes:
        return kind, slots
    program = replace(program, like=program.outline, known_nbytes=nbytes)
    changes = kind.columns.lives.changes(nbytes)
    every = ((part.columns, part.places) for part in slots.distinct)
    own = [SlotOps(program, *each, *changes) for each in every]
    return replace(kind, program=program), Parts(own, slots.which)


def _peak(
    kind: StageKind,
    slots: Parts,
    messages: ScheduleMessages,
    stage: int,
    micro_batches: int,
) -> MemoryUse:
    """The peak of one rank.

    On top of its slots' own buffers there are those of messages: a receive's from when it is
    posted, and what is sent stays until the wait for it. The moment between two slots at which
    something has come and the output has not left is no peak, as the next slot makes more.
    """
    order, (parts, which) = messages.orders[stage], slots
    most, after = (np.array([part.memory[at] for part in parts])[which] for at in (0, 1))
    posted = _posted(messages, stage, kind.message_bytes)
    steps = after - _over(messages, stage, kind.message_bytes)
    before = np.cumsum(steps, axis=0) - steps
    start = kind.persistent(micro_batches)
    during = start + before + posted[1:] + most
    last = start + steps.sum(axis=0) + posted[-1] + kind.end.memory[0]
    idle = start + posted[0]
    at, ends = int(on_device(during, 1).argmax()), kind.end.memory[2]
    found = [
        (idle, ""),
        (during[at], _named(kind, stage, order[at:], parts[which[at]], micro_batches)),
        (last, kind.columns.name(ends) if ends != NONE else ""),
    ]
    return max((use_of(*use) for use in found), key=lambda use: use.total_bytes)


def _posted(messages: ScheduleMessages, stage: int, nbytes: tuple[int, int]) -> Bytes:
    """Bytes of the receives' buffers posted at first, and when each slot begins."""
    posted = _moved(messages, stage, nbytes, RECEIVE)[:-1]
    return _activations(np.concatenate([[0], posted]).cumsum())


def _over(messages: ScheduleMessages, stage: int, nbytes: tuple[int, int]) -> Bytes:
    """Bytes of the sends' buffers that are free once each slot is through and its sends are
    awaited."""
    return _activations(_moved(messages, stage, nbytes, SENT)[1:])


def _moved(messages: ScheduleMessages, stage: int, nbytes: tuple[int, int], what: str) -> Counts:
    """Bytes of the messages for which there is such a step in each gap, and behind the last."""
    forward, backward = messages.moved(stage, what)
    return np.asarray(nbytes[0] * forward + nbytes[1] * backward)


def _named(
    kind: StageKind, stage: int, order: Sequence[Slot], own: SlotOps, micro_batches: int
) -> str:
    """The name of an op of another micro-batch, and of the layers of this stage, which is one of
    the first slot's, or of those paired with it. The last micro-batch is last in a step of so many
    too."""
    place = own.memory[2]
    if place == NONE:
        return ""
    columns = own.columns
    op, layer = columns.ops[columns.source[place]], int(columns.layer[place])
    slot = next((slot for slot in order[:3] if _has(slot, op)), order[0])
    is_last = slot.micro_batch == kind.plan.micro_batches - 1
    number = micro_batches - 1 if is_last else slot.micro_batch
    part = op.part
    if part.is_layer:
        chunks = chunk_layers(kind.program.gpt, kind.plan)
        places = places_of(kind.plan)
        first, here = (
            chunks[places.part(places.number(s, chunk))]
            for s, chunk in ((kind.program.stage, kind.like(slot.chunk)), (stage, slot.chunk))
        )
        part = layer_part(layer + here.start - first.start)
    return op_name(number, part, op.label, recomputed=op.identity[2])


def _has(slot: Slot, op: Op) -> bool:
    """Whether an op is of a slot's pass."""
    return (slot.work == FORWARD) == (op.block.work == FORWARD)


def _activations(nbytes: Counts) -> Bytes:
    """A row of bytes by role for each of these."""
    level = np.zeros((len(nbytes), len(ROLES)), dtype=np.int64)
    level[:, ROLES.index("activations")] = nbytes
    return level
