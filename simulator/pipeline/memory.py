"""A stage's peak memory over its whole schedule, slot by slot, exact to the byte."""

from __future__ import annotations

import numpy as np

from simulator.network import Ints
from simulator.pipeline.blocks import Kind, use_of
from simulator.pipeline.slots import Pipe, Tag
from simulator.positions import position
from workload.memory import MemoryUse
from workload.op import ROLES
from workload.schedule import BACKWARD, FORWARD, Slot


def stage_peak(kind: Kind, pipe: Pipe, stage: int, micro_batches: int) -> MemoryUse:
    """The most memory that a stage of this kind ever uses in a step of so many micro-batches.

    On top of its slots' own buffers there are those of messages: the next receive of either
    direction is always posted, and what is sent stays until the wait for it.
    """
    order = pipe.orders[stage]
    stream = _activations(kind.message_bytes)
    arrivals = [pipe.receives(stage, slot) for slot in order]
    left = {way: sum(1 for tag in arrivals if tag and tag[0] == way) for way in (FORWARD, BACKWARD)}
    level = kind.persistent(micro_batches)
    for way, count in left.items():
        level += stream * (count > 0)
        left[way] -= 1
    peak, where, held = level.copy(), "", 0
    for number, slot in enumerate(order):
        level, left = _posted(level, left, stream, arrivals[number])
        most, after, name = kind.part(slot).memory
        if (level + most).sum() > peak.sum():
            peak, where = level + most, _named(name, slot)
        level = level + after - stream * held
        held = int(pipe.sends(stage, slot) is not None)
        if held and (not pipe.overlapped or number + 1 == len(order)):
            level, held = level - stream, 0
    most, _, name = kind.end.memory
    if (level + most).sum() > peak.sum():
        peak, where = level + most, name
    return use_of(peak, where)


def _posted(
    level: Ints, left: dict[str, int], stream: Ints, arrival: Tag | None
) -> tuple[Ints, dict[str, int]]:
    """Once a message has arrived, the next receive of its direction is posted."""
    if arrival is None or left[arrival[0]] <= 0:
        return level, left
    return level + stream, {**left, arrival[0]: left[arrival[0]] - 1}


def _named(name: str, slot: Slot) -> str:
    return str(position(name).twin("micro_batch", slot.micro_batch))


def _activations(nbytes: int) -> Ints:
    level = np.zeros(len(ROLES), dtype=np.int64)
    level[ROLES.index("activations")] = nbytes
    return level
