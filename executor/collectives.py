"""Collectives on tensors, one call for each pair of input and output, and messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from executor.place import Place
from workload.op import COMPUTE, Op

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


class Waitable(Protocol):
    """What was issued and can be waited for, as torch's own works can."""

    def wait(self) -> object:
        """Wait for it; on a GPU the current stream does, not the host."""

    def get_future(self) -> Any:
        """What tells the host when it is done; a RuntimeError where nothing does."""


def payload_bytes(op: Op, pairs: Pairs) -> int:
    """What a collective carries: what is gathered, or else its input."""
    side = 1 if op.kind == "all_gather" else 0
    return sum(pair[side].nbytes for pair in pairs)


def issue(op: Op, pairs: Pairs, group: dist.ProcessGroup, at: Place) -> Waitable | None:
    """Perform a collective on all its operands, or start a message; returns what to wait for if it
    has its own stream.

    A time-out strikes where it is awaited.
    """
    if op.is_message:
        start, (tensor, _) = dist.isend if op.kind == "send" else dist.irecv, pairs[0]
        message: dist.Work | None = start(tensor, at.stage_peer(op.attributes["peer"]), group)
        return message
    call, later = CALLS[op.kind], op.stream != COMPUTE
    if len(pairs) == 1:
        return call(op, *pairs[0], group, later)
    if pairs[0][0].device.type == "cuda":
        work = _coalesced(op, pairs, group)
    else:
        work = Together([call(op, *pair, group, True) for pair in pairs])
    if later:
        return work
    work.wait()
    return None


class Together:
    """Works that were issued one after the other and count as one."""

    def __init__(self, works: Sequence[dist.Work | None]) -> None:
        self._works = [work for work in works if work is not None]

    def wait(self) -> None:
        """Wait for all of them, in the order in which they were issued."""
        for work in self._works:
            work.wait()

    def get_future(self) -> Any:
        """The future of all of their futures."""
        return torch.futures.collect_all([work.get_future() for work in self._works])


def _coalesced(op: Op, pairs: Pairs, group: dist.ProcessGroup) -> Waitable:
    """NCCL takes calls of one kind as a single launch."""
    device = pairs[0][0].device
    with _coalescing_manager(group=group, device=device, async_ops=True) as manager:
        for source, target in pairs:
            CALLS[op.kind](op, source, target, group, True)
    return Together(manager.works)


def _between(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> dist.Work | None:
    """An all-gather or a reduce-scatter: one tensor is as many times the other as ranks."""
    gathers = op.kind == "all_gather"
    call = dist.all_gather_into_tensor if gathers else dist.reduce_scatter_tensor
    flat = target.view(-1), source.view(-1)
    work: dist.Work | None = call(*flat, group=group, async_op=later)
    return work


def _all_reduce(
    op: Op, source: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> dist.Work | None:
    largest = op.attributes.get("reduction") == "max"
    reduction = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    work: dist.Work | None = dist.all_reduce(target, op=reduction, group=group, async_op=later)
    return work


Call = Callable[[Op, torch.Tensor, torch.Tensor, dist.ProcessGroup, bool], "dist.Work | None"]
CALLS: dict[str, Call] = {
    "all_gather": _between,
    "reduce_scatter": _between,
    "all_reduce": _all_reduce,
}
