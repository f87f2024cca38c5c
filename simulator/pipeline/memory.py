"""A stage's peak memory over its whole schedule, slot by slot, exact to the byte."""

from __future__ import annotations

import numpy as np

from simulator.network import Ints
from simulator.pipeline.blocks import Kind, use_of
from simulator.pipeline.slots import NO_MESSAGE, Pipe
from simulator.positions import position
from workload.memory import MemoryUse
from workload.op import ROLES
from workload.schedule import Slot


def stage_peak(kind: Kind, pipe: Pipe, stage: int, micro_batches: int) -> MemoryUse:
    """The most memory that a stage of this kind ever uses in a step of so many micro-batches.

    On top of its slots' own buffers there are those of messages: the next receive of either
    direction is always posted, and what is sent stays until the wait for it.
    """
    arrivals, departures = pipe.arrivals[stage], pipe.departures[stage]
    stream = _activations(kind.message_bytes)
    coming = [m for m in arrivals if m != NO_MESSAGE]
    left = [sum(pipe.is_backward(m) == backward for m in coming) for backward in (False, True)]
    level = kind.persistent(micro_batches) + stream * sum(count > 0 for count in left)
    peak, where, held = level.copy(), "", False
    for number, slot in enumerate(pipe.orders[stage]):
        if (arrival := arrivals[number]) != NO_MESSAGE:
            left[pipe.is_backward(arrival)] -= 1
            level = level + stream * (left[pipe.is_backward(arrival)] > 0)
        most, after, name = kind.part(slot).memory
        if (level + most).sum() > peak.sum():
            peak, where = level + most, _named(name, slot)
        level = level + after - stream * held
        held = departures[number] != NO_MESSAGE
        if held and (not pipe.overlapped or number + 1 == len(arrivals)):
            level, held = level - stream, False
    most, _, name = kind.end.memory
    if (level + most).sum() > peak.sum():
        peak, where = level + most, name
    return use_of(peak, where)


def _named(name: str, slot: Slot) -> str:
    return str(position(name).twin("micro_batch", slot.micro_batch))


def _activations(nbytes: int) -> Ints:
    level = np.zeros(len(ROLES), dtype=np.int64)
    level[ROLES.index("activations")] = nbytes
    return level
