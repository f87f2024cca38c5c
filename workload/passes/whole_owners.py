"""ZeRO-1 with whole parameters: each is updated by one of the ranks, instead of a shard by each.

Gradients are all-reduced, and each owner broadcasts its updated parameters one after the other.

Source: InternLM/InternEvo@c628a8c, internlm/solver/optimizer/hybrid_zero_optim.py,
_partition_param_list and broadcast_params; reduce_tensor without a destination in
_reduce_and_copy. Not modelled: an owner sends several parameters as one message, which matters if
there are fewer ranks than parameters; gate and up projections, and norms, are separate parameters
there; owners differ in their number of parameters (the update takes the mean owner's time).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workload.kinds import BROADCAST
from workload.op import BUCKET_SCATTER, PARAMETER_GATHER, Buffer, Op, altered


def by_whole_owners(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """The ops with all-reduces of gradients in place of reduce-scatters, and a broadcast of each
    parameter in place of gathers of several."""
    return [each for op in ops for each in _of_owners(op, buffers)]


def _of_owners(op: Op, buffers: Mapping[str, Buffer]) -> Iterator[Op]:
    if op.purpose == BUCKET_SCATTER:
        yield altered(op, kind="all_reduce")
    elif op.purpose == PARAMETER_GATHER:
        for number, (part, whole) in enumerate(zip(op.reads, op.writes, strict=True)):
            end = f".{number + 1}" if number else ""
            own = altered(op, kind=BROADCAST, reads=(part,), writes=(whole,))
            own = altered(own, nbytes=buffers[whole].nbytes)
            yield altered(own, name=op.name + end, label=op.label + end)
    else:
        yield op
