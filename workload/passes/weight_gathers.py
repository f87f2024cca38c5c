"""OAG: weights are gathered one linear ahead."""

from __future__ import annotations

from collections.abc import Sequence

from workload.moving import on_own_stream
from workload.op import BACKWARD, FORWARD, WEIGHT_FETCH, WEIGHT_GATHER, Block, Op

WITH_COPIES = (WEIGHT_FETCH, WEIGHT_GATHER)
Chain = tuple[int, str, Block | None]


def gather_ahead(ops: Sequence[Op]) -> list[Op]:
    """Each weight gather is issued one linear ahead, beside that linear's matmul.

    Forward, backward and each recomputed layer are chains of their own: a chain's first gather has
    nothing to hide behind. So is the copy of a part from the host, in front of its gather.
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
        if op.purpose not in WITH_COPIES or index in stays:
            continue
        own, chain = _with_gather(ops, index), _chain(op)
        place = first_use[previous[chain].writes[0]] if chain in previous else index
        moved = [each if each.purpose == WEIGHT_FETCH else on_own_stream(each) for each in own]
        before.setdefault(place, []).extend(moved)
        stays |= {index + at: each for at, each in enumerate(own)}
        previous[chain] = own[-1]
    for index, op in enumerate(ops):
        result += before.get(index, [])
        if index not in stays:
            result.append(op)
    return result


def _with_gather(ops: Sequence[Op], index: int) -> Sequence[Op]:
    """A gather, or the copy of a part with the gather of it, if there is one."""
    copied, following = ops[index], ops[index + 1 : index + 2]
    reads = [name for op in following if op.purpose == WEIGHT_GATHER for name in op.reads]
    return ops[index : index + 2] if copied.writes[0] in reads else [copied]


def _chain(gather: Op) -> Chain:
    block = gather.block
    if block.is_recomputed and not block.deferred:
        return block.micro_batch, block.phase, block
    return block.micro_batch, BACKWARD if block.phase == BACKWARD else FORWARD, None
