"""Playing a program: one rank performs its ops in issue order on real tensors."""

from __future__ import annotations

from functools import partial

import torch

from executor.collectives import Waitable, issue, payload_bytes
from executor.groups import Groups
from executor.inflight import InFlight
from executor.kernels import KERNELS
from executor.place import Place
from executor.record import Recorder
from executor.table import BufferTable
from workload.op import Op
from workload.program import Program


@torch.no_grad()
def play(
    program: Program, table: BufferTable, groups: Groups, at: Place, recorder: Recorder
) -> dict[str, int]:
    """Perform one step; returns the bytes that collectives and messages carried, by axes.

    Waits fall where the program's data flow says, and a buffer is freed where its live range ends.
    """
    flying = InFlight(recorder, at.device)
    carried: dict[str, int] = {}
    for index, op in enumerate(program.ops):
        for awaited in program.waits[index]:
            flying.land(program.ops[awaited].stream, awaited)
        recorder.begin(index)
        if op.communicates:
            work = _communicate(op, table, groups, at, carried)
        else:
            work = _compute(op, table, flying, at)
        flying.started(index, op, work)
        for name in program.releases[index]:
            table.free(name)
    flying.land_all()
    return carried


# Each in a function of its own: an operand that a variable still held could not be freed.
def _communicate(
    op: Op, table: BufferTable, groups: Groups, at: Place, carried: dict[str, int]
) -> Waitable | None:
    pairs = table.operands(op)
    axes = "+".join(op.axes)
    carried[axes] = carried.get(axes, 0) + payload_bytes(op, pairs)
    return issue(op, pairs, groups.of(op), at)


def _compute(op: Op, table: BufferTable, flying: InFlight, at: Place) -> Waitable | None:
    reads = [table[name] for name in op.reads]
    writes = [table.output(name) for name in op.writes]
    return flying.perform(op, partial(KERNELS[op.kind], op, reads, writes, at))
