"""What an op waits for: the rules by which both interpreters order a program.

1. Ops of one stream run in issue order.
2. An op waits for the last op of another stream that wrote what it reads, and before it writes, for
   the last ops of other streams that read or wrote that buffer.
3. An op on a communication stream starts no sooner than the compute ops issued before it are done
   (as ProcessGroupNCCL makes its stream wait for the current one).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from workload.op import COMPUTE, Op

Waits = tuple[int, ...]


def waits(ops: Sequence[Op]) -> list[Waits]:
    """For each op the indices it must wait for: at most one per other stream, the latest."""
    streams = [op.stream for op in ops]
    if streams.count(COMPUTE) == len(streams):
        return [()] * len(streams)
    writer: dict[str, int] = {}
    readers: dict[str, dict[str, int]] = {}
    last_compute = -1
    result: list[Waits] = []
    for index, (op, stream) in enumerate(zip(ops, streams, strict=True)):
        before = [writer[name] for name in (*op.reads, *op.writes) if name in writer]
        for name in op.writes:
            before += readers.pop(name, {}).values()
            writer[name] = index
        for name in op.reads:
            readers.setdefault(name, {})[stream] = index
        latest = {COMPUTE: last_compute} if stream != COMPUTE and last_compute >= 0 else {}
        for other in before:
            if streams[other] != stream and other > latest.get(streams[other], -1):
                latest[streams[other]] = other
        result.append(tuple(latest.values()))
        if stream == COMPUTE:
            last_compute = index
    return result


def retired_at(ops: Sequence[Op], wait_lists: Sequence[Waits]) -> list[int]:
    """For each op the index at which the compute stream surely knows it is done.

    A compute op is done when it is issued, as far as memory goes: its stream is in order. An op of
    another stream is known to be done at the first later op that waits for it or for a later op of
    its stream; failing that, at the end of the step.
    """
    retired = [index if op.stream == COMPUTE else len(ops) - 1 for index, op in enumerate(ops)]
    pending: dict[str, list[int]] = {}
    for index, op in enumerate(ops):
        for awaited in wait_lists[index]:
            queue = pending.get(ops[awaited].stream, [])
            while queue and queue[0] <= awaited:
                retired[queue.pop(0)] = index
        if op.stream != COMPUTE:
            pending.setdefault(op.stream, []).append(index)
    return retired


def needed_for(names: Collection[str], ops: Sequence[Op]) -> list[Op]:
    """The ops on which some buffers depend, on this stage or through messages on another."""
    needed, kept = set(names), []
    for op in reversed(ops):
        if op.is_message or op.kind == "fence" or needed.intersection(op.writes):
            needed.update(op.reads)
            kept.append(op)
    return kept[::-1]
