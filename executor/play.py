"""Playing a program: one rank performs its ops in issue order on real tensors."""

from __future__ import annotations

from collections import deque

import torch

from executor.collectives import Waitable, issue, payload_bytes
from executor.groups import Groups
from executor.kernels import KERNELS
from executor.place import Place
from executor.record import Recorder
from executor.table import BufferTable
from workload.op import Op
from workload.program import Program

Pending = dict[str, deque[tuple[int, Waitable]]]


@torch.no_grad()
def play(
    program: Program, table: BufferTable, groups: Groups, at: Place, recorder: Recorder
) -> dict[str, int]:
    """Perform one step; returns the bytes that this rank's collectives carried, by axes.

    Waits fall where the program's data flow says, and a buffer is freed where its live range ends.
    """
    pending: Pending = {}
    carried: dict[str, int] = {}
    for index, op in enumerate(program.ops):
        for awaited in program.waits[index]:
            _await(pending, program.ops[awaited].stream, awaited, recorder)
        recorder.begin(index)
        if op.is_collective:
            _collective(index, op, table, groups, pending, recorder, carried)
        else:
            reads = [table[name] for name in op.reads]
            writes = [table.output(name) for name in op.writes]
            KERNELS[op.kind](op, reads, writes, at)
            recorder.end(index)
        for name in program.releases[index]:
            table.free(name)
    for stream in pending:
        _await(pending, stream, len(program.ops), recorder)
    return carried


def _await(pending: Pending, stream: str, index: int, recorder: Recorder) -> None:
    """Wait for a stream's collectives up to op `index`, in the order in which they were issued."""
    queue = pending.get(stream)
    while queue and queue[0][0] <= index:
        issued, work = queue.popleft()
        work.wait()
        recorder.awaited(issued)


def _collective(
    index: int,
    op: Op,
    table: BufferTable,
    groups: Groups,
    pending: Pending,
    recorder: Recorder,
    carried: dict[str, int],
) -> None:
    pairs = table.operands(op)
    axes = "+".join(op.axes)
    carried[axes] = carried.get(axes, 0) + payload_bytes(op, pairs)
    work = issue(op, pairs, groups.of(op))
    if work is None:
        recorder.end(index)
    else:
        recorder.track(index, op.stream, work)
        pending.setdefault(op.stream, deque()).append((index, work))
