"""a2a: experts' all-to-alls of one micro-batch run beside the compute of another.

The backward pass of a micro-batch and the forward pass of the next one take turns, each as far as
its next all-to-all, which then runs while the other one computes. Both are on one stage; here the
plan has no other (`pairs.py` has what is done in a pipeline). Gradients of weights that were put
off (`workload/lowering/zero_bubble.py`) stay behind the all-to-all that hides behind them.
Source: Megatron-Core, overlap_moe_expert_parallel_comm without pipeline parallelism
(pipeline_parallel/combined_1f1b.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest

from workload.moving import on_own_stream
from workload.op import BACKWARD, FORWARD, WEIGHT_GRAD, Block, Buffer, Op
from workload.passes.exchanges.shared_experts import MOVED
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
            result += in_turns(stretches(own), stretches(following[0][1]))
            number += 1
        else:
            result += own
        number += 1
    return result


def _are_pair(slot: Slot | None, following: Slot | None) -> bool:
    if slot is None or following is None:
        return False
    return slot.work == BACKWARD and following.work == FORWARD


def in_turns(first: Iterable[Sequence[Op]], second: Iterable[Sequence[Op]]) -> list[Op]:
    """A stretch of the one, a stretch of the other, as long as there are any."""
    pairs = zip_longest(first, second, fillvalue=())
    return [op for pair in pairs for op in chain(*pair)]


def stretches(ops: Sequence[Op], later: Sequence[Op] = ()) -> Iterator[list[Op]]:
    """A pass cut in front of what first needs an all-to-all, or multiplies behind one.

    What of the ops `later` can run by then stands at a stretch's end, the rest at the last one's.
    """
    last = {name: at for at, op in enumerate(ops) for name in op.writes}
    stretch: list[Op] = []
    arriving: set[str] = set()
    waiting = list(later)
    for at, op in enumerate(ops):
        multiplies = bool(op.flops) and op.purpose != WEIGHT_GRAD
        if arriving and (multiplies or arriving.intersection(op.reads)):
            ready, waiting = _ready(waiting, [name for name in last if last[name] >= at])
            yield stretch + ready
            stretch, arriving = [], set()
        if op.purpose in MOVED and op.dtype != COUNTS:
            arriving.update(op.writes)
            stretch.append(on_own_stream(op))
        else:
            stretch.append(op)
    yield stretch + waiting


def _ready(ops: Sequence[Op], to_come: Iterable[str]) -> tuple[list[Op], list[Op]]:
    """The ops that need nothing which is still to come, nor touch what others before them that do
    would touch; and the rest."""
    missing, touched = set(to_come), set[str]()
    ready, rest = list[Op](), list[Op]()
    for op in ops:
        if missing.intersection((*op.reads, *op.writes)) or touched.intersection(op.writes):
            rest.append(op)
            missing.update(op.writes)
            touched.update(op.reads)
        else:
            ready.append(op)
    return ready, rest
