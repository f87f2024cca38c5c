"""Copies and casts that a stack makes around its ops, in kernels of their own.

A stack says for an op how many bytes go through memory besides, for each element that the op reads
first and for each that it writes. One op stands for all of these kernels: behind the op that they
belong to, or for a gathered weight in front of what first reads it, so that a gather that runs
ahead is not awaited early.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from workload.naming import op_name
from workload.op import COMPUTE, FORWARD, WEIGHT_GATHER, Buffer, Op
from workload.passes.weight_gathers import gather_ahead

Rates = tuple[int, int]  # bytes for an element that is read, and for one that is written
T = TypeVar("T")


def forward_gathers_ahead(ops: Sequence[Op]) -> list[Op]:
    """Weights of the forward pass alone are gathered one linear ahead."""
    forward: list[Op] = []
    result: list[Op] = []
    for op in ops:
        if op.block.phase == FORWARD:
            forward.append(op)
            continue
        result += [*gather_ahead(forward), op]
        forward = []
    return [*result, *gather_ahead(forward)]


def copied_around(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], rates: Mapping[str, Rates]
) -> list[Op]:
    """The ops with those that stand for copies around them."""
    result: list[Op] = []
    waiting: dict[str, Op] = {}
    for op in ops:
        result += [waiting.pop(name) for name in dict.fromkeys(op.reads) if name in waiting]
        result.append(op)
        asked = said_of(op, rates)
        if asked is None:
            continue
        copies = _copies(op, asked, buffers)
        if op.purpose == WEIGHT_GATHER:
            waiting[op.writes[0]] = copies
        else:
            result.append(copies)
    return [*result, *waiting.values()]


def said_of(op: Op, table: Mapping[str, T]) -> T | None:
    """What a stack says of an op: by its label, or by its purpose or kind; of one phase before what
    it says of all."""
    name = name_of(op, table)
    return None if name is None else table[name]


def name_of(op: Op, known: Container[str]) -> str | None:
    """The name under which a stack knows an op; None if it does not."""
    for name in (op.label, op.purpose or op.kind):
        for key in (f"{op.block.phase}.{name}", name):
            if key in known:
                return key
    return None


def _copies(op: Op, rates: Rates, buffers: Mapping[str, Buffer]) -> Op:
    label, whole = f"{op.label}.copies", op.writes[0]
    read, written = (buffers[name].elements for name in (op.reads[0], whole))
    return replace(
        op,
        name=op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed),
        kind="copies",
        reads=(whole,),
        writes=(whole,),
        stream=COMPUTE,
        axes=(),
        nbytes=rates[0] * read + rates[1] * written,
        flops=0,
        attributes={},
        label=label,
        purpose="",
        launches=1,
    )
