"""a2a: experts' all-to-alls of one micro-batch run beside the compute of another.

The backward pass of a micro-batch and the forward pass of the next one take turns, each as far as
its next all-to-all, which then runs while the other one computes. Both are on one stage, so this is
for plans without a pipeline. Source: Megatron-Core, overlap_moe_expert_parallel_comm without
pipeline parallelism (pipeline_parallel/combined_1f1b.py). Not modelled: delay_wgrad_compute, which
leaves gradients of weights for where there is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest

from workload.op import BACKWARD, FORWARD, Block, Buffer, Op
from workload.passes.expert_exchanges import MOVED
from workload.passes.moving import on_own_stream
from workload.pipeline.slot import Slot

COUNTS = "int64"  # the dtype of the exchange that says how many rows come, for which the host waits


def take_turns(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], slot_of: Mapping[Block, Slot]
) -> list[Op]:
    """Each backward slot and the forward slot right behind it in turns, from all-to-all to
    all-to-all."""
    slots = [(slot, list(own)) for slot, own in groupby(ops, lambda op: slot_of.get(op.block))]
    result: list[Op] = []
    number = 0
    while number < len(slots):
        (slot, own), following = slots[number], slots[number + 1 : number + 2]
        if following and _are_pair(slot, following[0][0]):
            result += _in_turns(own, following[0][1])
            number += 1
        else:
            result += own
        number += 1
    return result


def _are_pair(slot: Slot | None, following: Slot | None) -> bool:
    if slot is None or following is None:
        return False
    return slot.work == BACKWARD and following.work == FORWARD


def _in_turns(first: Sequence[Op], second: Sequence[Op]) -> list[Op]:
    pairs = zip_longest(_stretches(first), _stretches(second), fillvalue=())
    return [op for pair in pairs for op in chain(*pair)]


def _stretches(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """A pass cut in front of what first needs an all-to-all, or multiplies behind one."""
    stretch: list[Op] = []
    arriving: set[str] = set()
    for op in ops:
        if arriving and (op.flops or arriving.intersection(op.reads)):
            yield stretch
            stretch, arriving = [], set()
        if op.purpose in MOVED and op.dtype != COUNTS:
            arriving.update(op.writes)
            stretch.append(on_own_stream(op))
        else:
            stretch.append(op)
    yield stretch
