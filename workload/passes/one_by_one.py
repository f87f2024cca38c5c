"""A collective for the gradients of each parameter, in place of one for many.

Some stacks sum gradients without buckets: a blocking all-reduce for each parameter, so that each
pays a collective's latency, and its size alone decides the algorithm. Which axes they go over, and
the bytes of all of them, stay as they were.

Source: axonn-ai/axonn@660a224, axonn/intra_layer/__init__.py, sync_gradients_data_parallel and
sync_gradients_depth_parallel: a loop over parameters with one all_reduce each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workload.op import STEP, Buffer, Op, altered


def one_by_one(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """The ops with each all-reduce of several gradients cut by gradient, in their order, but for
    those that an overlap has moved."""
    return [each for op in ops for each in _cut(op, buffers)]


def _cut(op: Op, buffers: Mapping[str, Buffer]) -> Iterator[Op]:
    blocking = op.kind == "all_reduce" and op.block == STEP
    if not blocking or len(op.reads) < 2 or op.reads != op.writes:
        yield op
        return
    for number, name in enumerate(op.reads):
        own = altered(op, reads=(name,), writes=(name,), nbytes=buffers[name].nbytes)
        end = f".{number + 1}" if number else ""
        yield altered(own, name=op.name + end, label=op.label + end)
