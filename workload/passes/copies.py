"""Copies and casts that a stack makes around its ops, in kernels of their own.

A stack says for an op how many bytes go through memory besides, for each element that the op reads
first and for each that it writes. One op stands for all of these kernels: behind the op that they
belong to, or for a gathered weight in front of what first reads it, so that a gather that runs
ahead is not awaited early.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from workload.naming import op_name
from workload.op import COMPUTE, FORWARD, WEIGHT_GATHER, Buffer, Op, altered
from workload.passes.weight_gathers import gather_ahead

Rates = tuple[int, int]  # bytes for an element that is read, and for one that is written


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
    name_of = names_in(rates)
    for op in ops:
        result += [waiting.pop(name) for name in dict.fromkeys(op.reads) if name in waiting]
        result.append(op)
        if (name := name_of(op)) is None:
            continue
        copies = _copies(op, rates[name], buffers)
        if op.purpose == WEIGHT_GATHER:
            waiting[op.writes[0]] = copies
        else:
            result.append(copies)
    return [*result, *waiting.values()]


def names_in(known: Container[str]) -> Callable[[Op], str | None]:
    """What has the name under which a stack knows an op: its label, or its purpose or kind, of one
    phase before that of all; None if it does not know it."""
    found: dict[tuple[str, str, str], str | None] = {}

    def name(op: Op) -> str | None:
        about = op.label, op.purpose or op.kind, op.block.phase
        if about not in found:
            label, kind, phase = about
            names = f"{phase}.{label}", label, f"{phase}.{kind}", kind
            found[about] = next((each for each in names if each in known), None)
        return found[about]

    return name


def _copies(op: Op, rates: Rates, buffers: Mapping[str, Buffer]) -> Op:
    label, whole = f"{op.label}.copies", op.writes[0]
    read, written = (buffers[name].elements for name in (op.reads[0], whole))
    return altered(
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
