"""Playing a program: one rank performs its ops in issue order on real tensors."""

from __future__ import annotations

from functools import partial

import torch

from executor.async_work import AsyncWork
from executor.buffer_table import BufferTable
from executor.collectives import Waitable, issue
from executor.prepared import Communication, Computation, PreparedProgram
from executor.rank_context import RankContext
from executor.timing import Recorder


@torch.no_grad()
def play(
    program: PreparedProgram, table: BufferTable, at: RankContext, recorder: Recorder
) -> dict[str, int]:
    """Perform one step; returns the bytes that collectives and messages carried, by axes.

    Waits fall where the program's data flow says, and a buffer is freed where its live range ends.
    """
    in_flight = AsyncWork(recorder, at)
    carried: dict[str, int] = {}
    for op in program.ops:
        for stream, awaited in op.waits:
            in_flight.wait_for(stream, awaited)
        recorder.begin(op.index)
        for slot in op.begins:
            table.begin(slot)
        if isinstance(op.work, Communication):
            issued = _communicate(op.work, table, carried)
        else:
            issued = _compute(op.work, table, in_flight, at)
        in_flight.started(op.index, op.stream, issued)
        for slot in op.frees:
            table.free(slot)
    in_flight.wait_for_all()  # before the buffers of what nobody waited for are freed
    for slot in program.frees:
        table.free(slot)
    return carried


# Each in a function of its own: an operand that a variable still held could not be freed.
def _communicate(
    work: Communication, table: BufferTable, carried: dict[str, int]
) -> Waitable | None:
    carried[work.axes] = carried.get(work.axes, 0) + work.payload_bytes
    counts = table.tensors(work.counts)
    return issue(
        work.op, table.pairs(work.pairs), work.group, work.peer, counts, work.local_world_size
    )


def _compute(
    work: Computation, table: BufferTable, in_flight: AsyncWork, at: RankContext
) -> Waitable | None:
    operands = work.op, table.tensors(work.reads), table.tensors(work.writes), at
    if work.side_stream:
        return in_flight.aside(work.side_stream, partial(work.kernel, *operands))
    work.kernel(*operands)
    return None
