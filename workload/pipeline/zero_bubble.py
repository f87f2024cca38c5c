"""Zero-bubble schedules: a backward pass split into input gradients and weight gradients.

Source: Qi et al. (2401.10241), section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workload.op import Op


def split(ops: Sequence[Op], gradient: str) -> tuple[list[Op], list[Op]]:
    """The ops that the chunk's input gradient depends on, and the rest, in blocks of their own.

    An op that reads what a later op of the first kind overwrites stays with the first kind. So of a
    recomputed layer what only weight gradients want runs in their slot. Not modelled: frameworks
    whose checkpoints run a whole layer again where its input gradient is due.
    """
    needed, keep = {gradient}, [False] * len(ops)
    for index in reversed(range(len(ops))):
        if needed.intersection(ops[index].writes):
            keep[index] = True
            needed.update(ops[index].reads)
    overwritten: set[str] = set()
    for index in reversed(range(len(ops))):
        if overwritten.intersection(ops[index].reads):
            keep[index] = True
        if keep[index]:
            overwritten.update(ops[index].writes)
    now = [op for op, kept in zip(ops, keep, strict=True) if kept]
    later = [op for op, kept in zip(ops, keep, strict=True) if not kept]
    return now, [replace(op, block=replace(op.block, deferred=True)) for op in later]
