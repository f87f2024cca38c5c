"""Where a step's time goes, as the compute stream of one rank sees it.

Compute ops count as `compute`, those of the closing block `step` (norm, clipping, AdamW) as
`optimizer`, but for the time in which the device waits for the host to issue them, which counts as
`host`. A collective on the compute stream counts whole towards its axes, waiting for its peers
included. So does the time in which the compute stream waits for an op of another stream, and the
time from its own end to that of the step's last op, which leaves no `idle` time.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.stream_graph import HOST, PIPE, StreamGraph
from workload.sizes.arrays import Counts, Ticks


def last_to_end(end: Ticks) -> int:
    """The rank class whose last op ends last, given (classes, ops); the first if several do."""
    return int(end.max(axis=1).argmax())


def breakdown(
    graph: StreamGraph, start: Ticks, end: Ticks, copies: Counts, hosts: Ticks
) -> dict[str, int]:
    """Ticks of a rank class's step by what they went to, where op i stands for `copies[i]` ops;
    `start`, `end` and `hosts`, its waits for the host, have one entry per op. Those of a whole step
    sum to its time.
    """
    parts = compute_stream(graph, start, end, hosts, copies)
    parts["idle"] = 0
    return with_tail(parts, graph, end, int(end[graph.compute_ops[-1]]))


def compute_stream(
    graph: StreamGraph,
    start: Ticks,
    end: Ticks,
    hosts: Ticks,
    copies: Counts | None = None,
    begin: int = 0,
) -> dict[str, int]:
    """Ticks of the compute stream by what they went to, from `begin` to the end of its last op.

    What an op waits for other stages, in time that no op of its own rank explains, counts as
    `pipe`.
    """
    at, awaited = graph.compute_ops, graph.compute_waits
    keys, key_of = graph.time_keys
    over = np.append(end, 0)[awaited]
    latest = awaited[np.arange(len(at)), over.argmax(axis=1)]
    before = np.concatenate([[begin], end[at[:-1]]])[: len(at)]
    ready = np.maximum(before, over.max(axis=1))
    peers = np.where(graph.meets_within[at], key_of[at], keys.index(PIPE))
    host = hosts[at]
    own = end[at] - start[at] - host
    ticks = np.stack([ready - before, start[at] - ready, own, host], axis=1)
    if copies is not None:
        ticks *= copies[at][:, None]
    of_host = np.full_like(peers, keys.index(HOST))
    key = np.stack([key_of[latest], peers, key_of[at], of_host], axis=1)
    takes = ticks != 0
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, key[takes], ticks[takes])
    parts = {"compute": 0, "optimizer": 0}
    return parts | {
        keys[number]: int(sums[number]) for number in dict.fromkeys(key[takes].tolist())
    }


def with_tail(parts: dict[str, int], graph: StreamGraph, end: Ticks, over: int) -> dict[str, int]:
    """With the time from `over`, the compute stream's end, to that of the last op of any stream."""
    if tail := int(end.max(initial=over)) - over:
        keys, key_of = graph.time_keys
        key = keys[key_of[int(end.argmax())]]
        return {**parts, key: parts.get(key, 0) + tail}
    return parts
