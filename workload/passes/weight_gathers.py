"""OAG: weights are gathered one linear ahead."""

from __future__ import annotations

from collections.abc import Sequence

from workload.op import BACKWARD, FORWARD, WEIGHT_GATHER, Block, Op
from workload.passes.moving import on_own_stream

MOVED = (WEIGHT_GATHER,)
Chain = tuple[int, str, Block | None]


def gather_ahead(ops: Sequence[Op]) -> list[Op]:
    """Each weight gather is issued one linear ahead, beside that linear's matmul.

    Forward, backward and each recomputed layer are chains of their own: a chain's first gather has
    nothing to hide behind.
    """
    first_use: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in op.reads:
            first_use.setdefault(name, index)
    previous: dict[Chain, Op] = {}
    before: dict[int, list[Op]] = {}
    result: list[Op] = []
    stays: dict[int, Op] = {}
    for index, op in enumerate(ops):
        if op.purpose != WEIGHT_GATHER:
            continue
        chain = _chain(op)
        place = first_use[previous[chain].writes[0]] if chain in previous else index
        before.setdefault(place, []).append(on_own_stream(op))
        stays[index] = op
        previous[chain] = op
    for index, op in enumerate(ops):
        result += before.get(index, [])
        if index not in stays:
            result.append(op)
    return result


def _chain(gather: Op) -> Chain:
    block = gather.block
    if block.is_recomputed and not block.deferred:
        return block.micro_batch, block.phase, block
    return block.micro_batch, BACKWARD if block.phase == BACKWARD else FORWARD, None
