"""Playing a program: one rank performs its ops in issue order on real tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist

from executor.groups import Groups
from executor.kernels import KERNELS
from executor.place import Place
from executor.record import Recorder
from executor.table import BufferTable
from workload.op import COMPUTE, Op
from workload.program import Program

Pending = dict[str, deque[tuple[int, dist.Work]]]


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
        if op.communicates:
            _communicate(index, op, table, groups, at, pending, recorder, carried)
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


def _communicate(
    index: int,
    op: Op,
    table: BufferTable,
    groups: Groups,
    at: Place,
    pending: Pending,
    recorder: Recorder,
    carried: dict[str, int],
) -> None:
    later = op.stream != COMPUTE
    if op.is_message:
        payload, work = _message(op, table, groups.of(op), at)
    else:
        source = table.operand(op)
        target = source if op.kind == "all_reduce" else table.output(op.writes[0])
        payload = target if op.kind == "all_gather" else source
        work = COLLECTIVES[op.kind](op, source, target, groups.of(op), later)
    axes = "+".join(op.axes)
    carried[axes] = carried.get(axes, 0) + payload.nbytes
    if work is None:
        recorder.end(index)
    else:
        recorder.track(index, op.stream, work)
        pending.setdefault(op.stream, deque()).append((index, work))


def _message(
    op: Op, table: BufferTable, group: dist.ProcessGroup, at: Place
) -> tuple[torch.Tensor, dist.Work | None]:
    """Start a send or a receive; a send's token has no bytes, it only stands for its end."""
    peer, output = at.stage_peer(op.attributes["peer"]), table.output(op.writes[0])
    if op.kind == "recv":
        return output, dist.irecv(output, src=peer, group=group)
    sent = table[op.reads[0]]
    return sent, dist.isend(sent, dst=peer, group=group)


def _all_gather(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> dist.Work | None:
    flat = target.view(-1), source.view(-1)
    work: dist.Work | None = dist.all_gather_into_tensor(*flat, group=group, async_op=later)
    return work


def _reduce_scatter(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> dist.Work | None:
    flat = target.view(-1), source.view(-1)
    work: dist.Work | None = dist.reduce_scatter_tensor(*flat, group=group, async_op=later)
    return work


def _all_reduce(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> dist.Work | None:
    largest = op.attributes.get("reduction") == "max"
    reduction = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    work: dist.Work | None = dist.all_reduce(source, op=reduction, group=group, async_op=later)
    return work


Collective = Callable[[Op, torch.Tensor, torch.Tensor, dist.ProcessGroup, bool], "dist.Work | None"]
COLLECTIVES: dict[str, Collective] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
}
