"""Ticks of the parts of a model, of each kind of slot and by stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from simulator.search.bounds.batched_programs import BatchedProgram, PlacedProgram, differs_apart
from simulator.search.bounds.layer_kinds import kind_of
from simulator.search.bounds.op_bounds import OpBounds, asked_of
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, COMPUTE, MODEL, STEP, Op
from workload.overlaps import switch_of
from workload.sizes.arrays import Ticks

STEP_WORKS = ("gradients", "step")  # that follow the slots of the last micro-batch
ISSUED = "", "issued"
BLOCKING = "blocking"
OF_KERNELS = ("part times of kernels",)  # in place of a function that notes are kept by
Part = tuple[str, str, bool]
Counted = list[tuple[Op, dict[Part, int]]]
StreamTimes = dict[Part, dict[tuple[str, str], Ticks]]
PartTimes = Mapping[tuple[str, str, bool], Mapping[tuple[str, str], Ticks]]


def part_times(op_bounds: OpBounds, some: BatchedProgram) -> PartTimes:
    """Ticks of the model's parts, an entry for each row.

    The key (part, work, last) has sums of ops by the overlap that gave them a stream of their own
    ("" if none did, BLOCKING for a collective on the compute stream) and that stream. `work` is one
    of WORK, "gradients" for sums over data or "step" for what follows all slots; `last` is true for
    the last micro-batch. The stream ISSUED has for how long the host issues slots' kernels.
    """
    if not isinstance(some, PlacedProgram):
        return _summed(op_bounds, some, some.noted(_counted))
    base = some.base
    if some.stands_as_base:
        return {
            key: {stream: ticks[some.lane] for stream, ticks in own.items()}
            for key, own in part_times(op_bounds, base).items()
        }
    # Where its ranks are makes a difference to what a row sends alone.
    if OF_KERNELS not in base.notes:
        kernels = [each for each in base.noted(_counted) if not each[0].communicates]
        base.notes[OF_KERNELS] = _summed(op_bounds, base, kernels)
    known = {
        key: {stream: ticks[some.lane] for stream, ticks in own.items()}
        for key, own in base.notes[OF_KERNELS].items()
    }
    sent = [each for each in base.noted(_counted) if each[0].communicates]
    for key, streams in _summed(op_bounds, some, sent).items():
        own = known.setdefault(key, {})
        for stream, ticks in streams.items():
            own[stream] = own[stream] + ticks if stream in own else ticks
    return known


def _summed(op_bounds: OpBounds, some: BatchedProgram, counted: Counted) -> StreamTimes:
    """The sums of some of a program's ops."""
    ticks: StreamTimes = defaultdict(dict)
    for op, where in counted:
        key, each = stream_of(op), op_bounds.ticks(some, op)
        issued = op_bounds.host_ticks(some, op) if _is_kernel(op) else None
        for entry, count in where.items():
            streams, own = ticks[entry], count * each if count > 1 else each
            streams[key] = streams[key] + own if key in streams else own
            if issued is not None:
                streams[ISSUED] = streams.get(ISSUED, 0) + count * issued
    return ticks


def stream_of(op: Op) -> tuple[str, str]:
    """The overlap that gave an op a stream of its own, "" if none did and BLOCKING for a collective
    on the compute stream; and that stream."""
    blocks = op.is_collective and op.stream == COMPUTE
    return BLOCKING if blocks else switch_of(op), op.stream


def _is_kernel(op: Op) -> bool:
    """Whether the host issues an op on the stream of compute, whatever the overlaps."""
    return op.stream == COMPUTE and not op.communicates and op.block != STEP


def of_one_micro_batch(known: PartTimes) -> PartTimes:
    """The times of parts for rows of one micro-batch, out of a program of two: it has the ops of
    the first of these, which adds to no gradients, and what follows the last is the same behind it
    (`tests/simulator/search/test_one_micro_batch.py`)."""
    of_first = {key: own for key, own in known.items() if key[1] in STEP_WORKS or not key[2]}
    again = {(part, work, True): own for (part, work, last), own in of_first.items() if not last}
    return {**of_first, **again}


def _counted(some: BatchedProgram) -> list[tuple[Op, dict[tuple[str, str, bool], int]]]:
    """The ops that count, one of each sort that takes the same time on the same stream, with the
    keys that they count for, and how often."""
    last = some.micro_batches - 1
    found: dict[tuple[object, ...], tuple[Op, dict[tuple[str, str, bool], int]]] = {}
    for op in some.program.ops:
        where = [] if differs_apart(op, some) else _where(op, some, last)
        if where:
            sort = op.stream, op.purpose, op.dtype, asked_of(op)
            counts = found.setdefault(sort, (op, {}))[1]
            for key in where:
                counts[key] = counts.get(key, 0) + 1
    return list(found.values())


def _where(op: Op, some: BatchedProgram, last: int) -> list[tuple[str, str, bool]]:
    """The keys of `part_times` that an op counts for, given the `last` micro-batch; none for ops
    that grow with the model, or are tiny.

    Those between the first micro-batch, which adds to no gradients, and the last have what the last
    has, but for sums of gradients (`tests/simulator/search/test_middle.py`).
    """
    gpt = some.program.gpt
    if op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE):
        return [(kind_of(op.part, gpt), "gradients", True)] if op.part != MODEL else []
    if op.block == STEP:
        return [(kind_of(op.part, gpt), "step", True)] if op.part != MODEL else []
    return [
        (kind_of(op.block.part, gpt), op.block.work, is_last)
        for is_last in (False, True)
        if op.block.micro_batch == (last if is_last else 0)
    ]
