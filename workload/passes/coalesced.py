"""Collectives over all parameters at once, in place of one for each part of the model.

Some stacks flatten what all parameters have to sum or to gather into one buffer, so that a ring's
latency is paid once. The one collective stands where the last of them stood: what it brings is not
needed sooner, as the norm wants all gradients and the next step all parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workload.op import BUCKET_SCATTER, COMPUTE, PARAMETER_GATHER, Buffer, Op, altered

Sort = tuple[str, tuple[str, ...], str]


def coalesced(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """The ops with one reduce-scatter of gradients and one gather of parameters over each group,
    of those that no overlap has moved."""
    sorts: dict[Sort, list[Op]] = {}
    for op in ops:
        if _is_of_all(op):
            sorts.setdefault(_sort(op), []).append(op)
    result = []
    for op in ops:
        if not _is_of_all(op):
            result.append(op)
        elif op is sorts[_sort(op)][-1]:
            result.append(_together(sorts[_sort(op)], buffers))
    return result


def _is_of_all(op: Op) -> bool:
    return op.purpose in (BUCKET_SCATTER, PARAMETER_GATHER) and op.stream == COMPUTE


def _sort(op: Op) -> Sort:
    return op.purpose, op.axes, op.dtype


def _together(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> Op:
    reads = tuple(dict.fromkeys(name for op in ops for name in op.reads))
    writes = tuple(dict.fromkeys(name for op in ops for name in op.writes))
    nbytes = sum(op.nbytes * _times(op, buffers) for op in ops)
    return altered(ops[-1], reads=reads, writes=writes, nbytes=nbytes)


def _times(op: Op, buffers: Mapping[str, Buffer]) -> int:
    """How many layers' collectives one of a layer stands for."""
    return buffers[op.reads[0]].count if op.part.is_layer else 1
