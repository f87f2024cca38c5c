"""A backward pass split into input gradients and weight gradients: for zero-bubble schedules, and
to put off the latter.

Source: Qi et al. (2401.10241), section 2; NVIDIA/Megatron-LM, delay_wgrad_compute
(core/models/common/model_chunk_schedule_plan.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from workload.op import Op
from workload.passes.exchanges.other_micro_batch import stretches

FENCE = "fence"


def split(ops: Sequence[Op], gradient: str) -> tuple[list[Op], list[Op]]:
    """The ops that the chunk's input gradient depends on, and the rest, in blocks of their own.

    An op that reads what a later op of the first kind overwrites stays with the first kind, and so
    does a fence in front of what is read there once it has come. So of a recomputed layer what only
    weight gradients want runs in their slot. Not modelled: frameworks whose checkpoints run a whole
    layer again where its input gradient is due.
    """
    keep = _kept(ops, gradient)
    now = [op for op, kept in zip(ops, keep, strict=True) if kept]
    later = [op for op, kept in zip(ops, keep, strict=True) if not kept]
    return now, [replace(op, block=op.block._replace(deferred=True)) for op in later]


def put_off(ops: Sequence[Op], gradient: str) -> list[Op]:
    """A backward pass in which a layer's gradients of weights run beside the next all-to-all of
    experts' rows, behind which there is none at the pass's end.

    Not modelled: that Megatron sends the chunk's input gradient before the last of them.
    """
    keep = _kept(ops, gradient)
    now = [op for op, kept in zip(ops, keep, strict=True) if kept or not op.part.is_layer]
    later = [op for op, kept in zip(ops, keep, strict=True) if not kept and op.part.is_layer]
    return list(chain(*stretches(now, later)))


def _kept(ops: Sequence[Op], gradient: str) -> list[bool]:
    """Which ops stay with the input gradient."""
    needed, keep = {gradient}, [False] * len(ops)
    for index in reversed(range(len(ops))):
        op = ops[index]
        if needed.intersection(op.reads if op.kind == FENCE else op.writes):
            keep[index] = True
            needed.update(op.reads)
    overwritten: set[str] = set()
    for index in reversed(range(len(ops))):
        if overwritten.intersection(ops[index].reads):
            keep[index] = True
        if keep[index]:
            overwritten.update(ops[index].writes)
    return keep
