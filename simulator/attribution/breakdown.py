"""Where a step's time goes, as the compute stream of one rank sees it.

Compute ops count as `compute`, those of the closing block `step` (norm, clipping, AdamW) as
`optimizer`. A collective on the compute stream counts whole towards its axes, waiting for its peers
included. So does the time in which the compute stream waits for an op of another stream, and the
time from its own end to that of the step's last op, which leaves no `idle` time.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.fold_proof import FoldedTimes
from workload.dataflow import Waits
from workload.op import COMPUTE, STEP, Op

ACROSS_STAGES = frozenset(("pipe", "ends"))


def last_to_end(folded: FoldedTimes) -> int:
    """The rank class whose last op ends last; the first of them if several do."""
    return int(folded.end.max(axis=1).argmax())


def breakdown(folded: FoldedTimes, number: int, copies: Sequence[int]) -> dict[str, int]:
    """Ticks of a rank class's step by what they went to, where op i stands for `copies[i]` ops.

    Without folding the parts sum to the class's step; with it, if the ops' waits are even too.
    """
    program, follows = folded.program, folded.predecessors
    start, end = folded.start[number].tolist(), folded.end[number].tolist()
    earlier_end = folded.earlier_end[number].tolist()
    bounds = [*follows.first.tolist(), len(earlier_end)]
    parts = {"compute": 0, "optimizer": 0}
    for index, op in enumerate(program.ops):
        if op.stream != COMPUTE:
            continue
        pairs = range(bounds[index], bounds[index + 1])
        latest = max(pairs, key=lambda pair: (earlier_end[pair], -pair))
        ready = max(earlier_end[latest], 0)
        waited = ready - earlier_end[bounds[index]]
        if waited:
            key = program.ops[int(follows.earlier[latest])].time_key
            parts[key] = parts.get(key, 0) + copies[index] * waited
        if op.is_collective:
            key = op.time_key
            parts[key] = parts.get(key, 0) + copies[index] * (end[index] - ready)
        else:
            key = "optimizer" if op.block == STEP else "compute"
            parts[key] += copies[index] * (end[index] - start[index])
    last = max(e for e, op in zip(end, program.ops, strict=True) if op.stream == COMPUTE)
    parts["idle"] = 0
    if max(end) > last:
        key = program.ops[end.index(max(end))].time_key
        parts[key] = parts.get(key, 0) + max(end) - last
    return parts


def parts_of(
    ops: Sequence[Op],
    waits: Sequence[Waits],
    start: Sequence[int],
    end: Sequence[int],
    begin: int,
) -> dict[str, int]:
    """Ticks of a compute stream from `begin` to its last op's end by what they went to.

    Waiting for other stages counts as `pipe`.
    """
    parts: dict[str, int] = {"compute": 0, "optimizer": 0}
    clock = begin
    for index, op in enumerate(ops):
        if op.stream != COMPUTE:
            continue
        latest = max(waits[index], key=lambda other: end[other], default=None)
        if latest is not None and end[latest] > clock:
            key = ops[latest].time_key
            parts[key] = parts.get(key, 0) + end[latest] - clock
            clock = end[latest]
        own = op.time_key if op.is_collective else "optimizer" if op.block == STEP else "compute"
        within = op.is_collective and not ACROSS_STAGES.intersection(op.axes)
        before = own if within else "pipe"
        for key, ticks in ((before, start[index] - clock), (own, end[index] - start[index])):
            if ticks:
                parts[key] = parts.get(key, 0) + ticks
        clock = end[index]
    return parts
