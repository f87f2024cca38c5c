"""Playing a program: one rank performs its ops in issue order on real tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from executor.async_work import AsyncWork
from executor.buffer_table import BufferTable
from executor.collectives import Waitable, issue, payload_bytes
from executor.groups import ProcessGroups
from executor.kernels import KERNELS
from executor.rank_context import RankContext
from executor.timing import Recorder
from workload.op import Op
from workload.program import Program


@torch.no_grad()
def play(
    program: Program,
    table: BufferTable,
    groups: ProcessGroups,
    at: RankContext,
    recorder: Recorder,
    order: Sequence[int] | None = None,
) -> dict[str, int]:
    """Perform one step; returns the bytes that collectives and messages carried, by axes.

    Ops are issued in the given order of their indices, or as the program lists them. Waits fall
    where its data flow says, and a buffer is freed where its live range ends.
    """
    in_flight = AsyncWork(recorder, at)
    carried: dict[str, int] = {}
    order = order or range(len(program.ops))
    for index in order:
        op = program.ops[index]
        for awaited in program.waits[index]:
            in_flight.wait_for(program.ops[awaited].stream, awaited)
        recorder.begin(index)
        if op.communicates:
            work = _communicate(op, table, groups, at, carried)
        else:
            work = _compute(op, table, in_flight, at)
        in_flight.started(index, op, work)
        if index == order[-1]:
            in_flight.wait_for_all()  # before the buffers of what nobody waited for are freed
        for name in program.releases[index]:
            table.free(name)
    return carried


# Each in a function of its own: an operand that a variable still held could not be freed.
def _communicate(
    op: Op, table: BufferTable, groups: ProcessGroups, at: RankContext, carried: dict[str, int]
) -> Waitable | None:
    pairs = table.operands(op)
    axes = "+".join(op.axes)
    carried[axes] = carried.get(axes, 0) + payload_bytes(op, pairs)
    return issue(op, pairs, groups.of(op), at)


def _compute(op: Op, table: BufferTable, in_flight: AsyncWork, at: RankContext) -> Waitable | None:
    reads = [table[name] for name in op.reads]
    writes = [table.output(name) for name in op.writes]
    return in_flight.perform(op, partial(KERNELS[op.kind], op, reads, writes, at))
