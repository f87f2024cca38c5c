"""shared: experts' all-to-alls run beside the MLP that all tokens pass."""

from __future__ import annotations

from collections.abc import Sequence

from workload.moving import on_own_stream
from workload.op import Op
from workload.overlaps import SHARED

MOVED = SHARED.purposes


def overlap_exchanges(ops: Sequence[Op]) -> list[Op]:
    """An all-to-all of experts' rows runs beside the matmuls issued before what it brings is read.

    The lowering issues the shared MLP's first half behind the dispatch and its second behind the
    combine, in the backward pass the other way round. Where there is no such MLP, what moves is the
    exchange of rows' scores, beside the experts' own matmuls.
    """
    if not any(op.purpose in MOVED for op in ops):
        return list(ops)
    readers: dict[str, int] = {}
    for index, op in reversed(list(enumerate(ops))):
        readers |= dict.fromkeys(op.reads, index)
    return [
        on_own_stream(op) if op.purpose in MOVED and _has_cover(ops, index, readers) else op
        for index, op in enumerate(ops)
    ]


def _has_cover(ops: Sequence[Op], index: int, readers: dict[str, int]) -> bool:
    """Whether a matmul stands between an op and the first that reads what it wrote."""
    first = readers.get(ops[index].writes[0], len(ops))
    return any(op.flops for op in ops[index + 1 : first])
