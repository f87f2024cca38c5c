"""Collectives on tensors, one call for each pair of input and output, and messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from executor.exchanges.once import exchange_once
from executor.exchanges.plain import Sizes, exchange
from executor.exchanges.two_steps import exchange_in_steps
from workload.kinds import RECV, RING_SHIFT
from workload.op import COMPUTE, FOR_NODES, Op

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


class Waitable(Protocol):
    """What was issued and can be waited for, as torch's own works can."""

    def wait(self) -> object:
        """Wait for it; on a GPU the current stream does, not the host."""

    def get_future(self) -> Any:
        """What tells the host when it is done; a RuntimeError where nothing does."""


def payload_bytes(op: Op, sizes: Sequence[tuple[int, int]]) -> int:
    """What a collective on pairs of so many bytes carries: what is gathered, or else its input; and
    what a message sends, which is nothing at the end that receives it."""
    if op.kind == RECV:
        return 0
    side = 1 if op.kind == "all_gather" else 0
    return sum(pair[side] for pair in sizes)


def issue(
    op: Op,
    pairs: Pairs,
    group: dist.ProcessGroup,
    peer: int | None,
    counts: Sequence[torch.Tensor] = (),
    local_world_size: int = 0,
) -> Waitable | None:
    """Perform a collective on all its operands, or start a message if there is a peer; returns what
    to wait for if it has its own stream. Where it matters how many ranks of the group share a node,
    these are `local_world_size`.

    A time-out strikes where it is awaited.
    """
    if peer is not None:
        start, (tensor, _) = dist.isend if op.kind == "send" else dist.irecv, pairs[0]
        message: dist.Work | None = start(tensor, peer, group)
        return message
    # A blocking one too is issued asynchronously and awaited at once: else recent versions of torch
    # run it on the current stream of a GPU, and a communicator would have calls on two streams.
    if counts or local_world_size:
        work: Waitable = _exchange(op, pairs[0], group, counts, local_world_size)
    elif len(pairs) == 1:
        work = CALLS[op.kind](op, *pairs[0], group)
    elif pairs[0][0].device.type == "cuda" and op.kind in COALESCED:
        work = coalesced(op, pairs, group)
    else:
        work = Together([CALLS[op.kind](op, *pair, group) for pair in pairs])
    if op.stream != COMPUTE:
        return work
    work.wait()
    return None


class Together:
    """Works that were issued one after the other and count as one."""

    def __init__(self, works: Sequence[Waitable]) -> None:
        self._works = list(works)

    def wait(self) -> None:
        """Wait for all of them, in the order in which they were issued."""
        for work in self._works:
            work.wait()

    def get_future(self) -> Any:
        """The future of all of their futures."""
        return torch.futures.collect_all([work.get_future() for work in self._works])


def coalesced(op: Op, pairs: Pairs, group: dist.ProcessGroup) -> Waitable:
    """NCCL takes calls of one kind as a single launch.

    Without a device: with one torch ends its coalescing once more, and what it then returns takes
    the place of the work that was issued.
    """
    with _coalescing_manager(group=group, async_ops=True) as manager:
        for source, target in pairs:
            CALLS[op.kind](op, source, target, group)
    assert manager.works, "torch issued what it collected"
    return Together(manager.works)


def _between(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup
) -> dist.Work:
    """An all-gather or a reduce-scatter: one tensor is as many times the other as ranks."""
    call = ALL_GATHER if op.kind == "all_gather" else REDUCE_SCATTER
    work: dist.Work = call(_flat(target), _flat(source), group=group, async_op=True)
    return work


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one dimension; a view takes longer than the question."""
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def _ring_shift(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup
) -> Waitable:
    """Sends to the next member of the group, and receives from the one before."""
    members = dist.get_process_group_ranks(group)
    own = dist.get_rank(group)
    there, back = members[(own + 1) % len(members)], members[own - 1]
    pair = [
        dist.P2POp(dist.isend, source, there, group),
        dist.P2POp(dist.irecv, target, back, group),
    ]
    return Together(dist.batch_isend_irecv(pair))


def _all_reduce(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup
) -> dist.Work:
    largest = op.attributes.get("reduction") == "max"
    reduction = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    work: dist.Work | None = dist.all_reduce(target, op=reduction, group=group, async_op=True)
    assert work is not None, "the rank is a member"
    return work


def _all_to_all(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup
) -> dist.Work:
    """The n-th of equal parts goes to the group's n-th rank; of dimension 0, so of all elements."""
    return exchange(_flat(source), _flat(target), None, group)


def _exchange(
    op: Op,
    pair: tuple[torch.Tensor, torch.Tensor],
    group: dist.ProcessGroup,
    counts: Sequence[torch.Tensor],
    local_world_size: int,
) -> Waitable:
    """An all-to-all of rows, of which each expert gets another number: by `counts` those that this
    rank sends and those that it gets, for every expert of every rank."""
    if FOR_NODES in op.attributes and counts:
        return exchange_once(op, pair, group, counts, local_world_size)
    source, target = pair
    sizes = _sizes(counts, group.size()) if counts else None
    if 1 < local_world_size < group.size():
        return exchange_in_steps(source, target, sizes, group, local_world_size)
    if sizes is None:
        return _all_to_all(op, source, target, group)
    return exchange(source, target, sizes, group)


def _sizes(counts: Sequence[torch.Tensor], ranks: int) -> Sizes:
    """Rows for each rank and from it, of counts by rank and then by expert."""
    sent, came = (each.view(ranks, -1).sum(1).tolist() for each in counts[:2])
    return sent, came


# Older versions of torch have other names for them, of which newer ones warn.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
Call = Callable[[Op, torch.Tensor, torch.Tensor, dist.ProcessGroup], Waitable]
CALLS: dict[str, Call] = {
    "all_gather": _between,
    "reduce_scatter": _between,
    "all_reduce": _all_reduce,
    RING_SHIFT: _ring_shift,
    "all_to_all": _all_to_all,
}
COALESCED = ("all_gather", "reduce_scatter", "all_reduce")  # what torch takes together
