"""Where a step's time goes, as the compute stream of one rank sees it.

Compute ops count as `compute`, those of the closing block `step` (norm, clipping, AdamW) as
`optimizer`. A collective on the compute stream counts whole towards its axes, waiting for its peers
included. So does the time in which the compute stream waits for an op of another stream, and the
time from its own end to that of the step's last op, which leaves no `idle` time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.engine.stream_graph import StreamGraph
from workload.dataflow import Waits
from workload.op import ACROSS_STAGES, COMPUTE, STEP, Op
from workload.sizes.arrays import Counts, Ticks


def last_to_end(end: Ticks) -> int:
    """The rank class whose last op ends last, given (classes, ops); the first if several do."""
    return int(end.max(axis=1).argmax())


def breakdown(graph: StreamGraph, start: Ticks, end: Ticks, copies: Counts) -> dict[str, int]:
    """Ticks of a rank class's step by what they went to, where op i stands for `copies[i]` ops;
    `start` and `end` have one entry per op. Those of a whole step sum to its time.
    """
    at, awaited = graph.compute_ops, graph.compute_waits
    keys, key_of = graph.time_keys
    over = np.append(end, 0)[awaited]
    latest = awaited[np.arange(len(at)), over.argmax(axis=1)]
    before = np.concatenate([[0], end[at[:-1]]])
    ready = np.maximum(before, over.max(axis=1))
    blocks = graph.collectives[at]
    own = end[at] - np.where(blocks, ready, start[at])
    ticks = np.stack([ready - before, own], axis=1) * copies[at][:, None]
    key = np.stack([key_of[latest], key_of[at]], axis=1)
    takes = (ticks != 0) | np.stack([np.zeros_like(blocks), blocks], axis=1)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, key[takes], ticks[takes])
    parts = {"compute": 0, "optimizer": 0}
    parts |= {keys[number]: int(sums[number]) for number in dict.fromkeys(key[takes].tolist())}
    parts["idle"] = 0
    if tail := int(end.max() - end[at[-1]]):
        name = keys[key_of[int(end.argmax())]]
        parts[name] = parts.get(name, 0) + tail
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
