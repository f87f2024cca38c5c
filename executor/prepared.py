"""A program prepared for one rank: what each step's walk would look up, looked up once."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from executor.buffer_table import BufferTable, SlotPairs, Slots
from executor.collectives import payload_bytes
from executor.groups import ProcessGroups
from executor.kernels import KERNELS, Kernel
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import COMPUTE, Op
from workload.program import Program


@record
class Computation:
    """A kernel with its operands' slots. `side_stream` names the stream of a GPU on which it runs
    beside the one that computes; "" is the latter."""

    op: Op
    kernel: Kernel
    reads: Slots
    writes: Slots
    side_stream: str


@record
class Communication:
    """A collective or message with the slots of its pairs of input and output.

    A message has a `peer`, its other side. `payload_bytes` are counted under `axes`. An exchange of
    rows whose numbers the data decides has the slots of their `counts`; where it matters which
    ranks of the group share a node, `local_world_size` of them do.
    """

    op: Op
    pairs: SlotPairs
    group: dist.ProcessGroup
    peer: int | None
    axes: str
    payload_bytes: int
    counts: Slots = ()
    local_world_size: int = 0


@record
class PreparedOp:
    """What is done at one op, which has an index in its program.

    First it `waits` for ops of other streams, up to an index of each. Then the slots in `begins`
    get their tensors; those in `frees` lose them once it is issued.
    """

    index: int
    stream: str
    waits: tuple[tuple[str, int], ...]
    begins: Slots
    work: Computation | Communication
    frees: Slots


@record
class PreparedProgram:
    """Ops in the order of issue, and the slots that are freed once all of them are awaited."""

    ops: tuple[PreparedOp, ...]
    frees: Slots


def prepare(
    program: Program,
    table: BufferTable,
    groups: ProcessGroups,
    at: RankContext,
    order: Sequence[int] | None = None,
) -> PreparedProgram:
    """Prepare the ops in the given order of their indices, or as the program lists them.

    The program's groups are made already, and no other program's after them.
    """
    begun = {buffer.name for buffer in program.buffers.values() if buffer.persistent}
    order = order or range(len(program.ops))
    ops = []
    for index in order:
        op, released = program.ops[index], program.releases[index]
        begins = [name for name in op.writes if name not in begun]
        begun.update(begins)
        assert begun.issuperset(op.reads), f"{op.name} reads what nothing wrote"
        work_of = _communication if op.communicates else _computation
        ops.append(
            PreparedOp(
                index,
                op.stream,
                _waits(program, index),
                table.slots(begins),
                work_of(op, table, groups, at),
                # Until the step's end ops may be in flight that no op waits for.
                table.slots(released if index != order[-1] else ()),
            )
        )
    return PreparedProgram(tuple(ops), table.slots(program.releases[order[-1]]))


def _waits(program: Program, index: int) -> tuple[tuple[str, int], ...]:
    """What is waited for; nothing of the compute stream is ever in flight."""
    pairs = ((program.ops[awaited].stream, awaited) for awaited in program.waits[index])
    return tuple((stream, awaited) for stream, awaited in pairs if stream != COMPUTE)


def _computation(op: Op, table: BufferTable, _: ProcessGroups, at: RankContext) -> Computation:
    side_stream = op.stream if op.stream != COMPUTE and at.device.type == "cuda" else ""
    return Computation(
        op, KERNELS[op.kind], table.slots(op.reads), table.slots(op.writes), side_stream
    )


def _communication(
    op: Op, table: BufferTable, groups: ProcessGroups, at: RankContext
) -> Communication:
    pairs = table.slot_pairs(op)
    peer = at.stage_peer(op.attributes["peer"]) if op.is_message else None
    carried = payload_bytes(op, [(table.nbytes(a), table.nbytes(b)) for a, b in pairs])
    counts = table.slots(op.reads[1:]) if op.kind == "all_to_all" else ()
    about = "+".join(op.axes), carried, counts, groups.local_world_size(op)
    return Communication(op, pairs, groups.of(op), peer, *about)
