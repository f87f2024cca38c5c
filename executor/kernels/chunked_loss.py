"""Rows of a micro-batch taken chunk by chunk through the classifier, and a loss that makes the
gradient of logits in place of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import cut, wide_dtype, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
COPIES = 4  # of its rows that a fused loss makes: themselves, exponentials and their sums


def take_chunk(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rows of each operand from `start` on, as many as there is room for."""
    (start,) = op.attributes["start"]
    for whole, own in zip(reads, writes, strict=True):
        own.copy_(whole[start : start + len(own)])


def put_chunk(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """A chunk's rows to where they belong, from `start` on."""
    (start,) = op.attributes["start"]
    writes[0][start : start + len(reads[0])] = reads[0]


def fused_loss(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add a chunk's share of the mean cross-entropy over the step's tokens, and put the gradient of
    its logits in their place; padded columns become zero. Of a loss that leaves tokens out the sum
    over the kept ones is added, and their number, both divided by all tokens."""
    logits, targets = reads[:2]
    total, tokens, valid = writes[1], op.attributes["tokens"], op.attributes["vocab"]
    masked = len(total) > 1
    if op.attributes["first"]:
        total.zero_()
    for part in wide_rows(logits, at, copies=COPIES):
        rows, hit = cut(logits, part), cut(targets, part)[:, None]
        own = rows[:, :valid].to(wide_dtype(logits))
        ends = own.logsumexp(1, keepdim=True)
        losses = ends - own.gather(1, hit)
        own.sub_(ends).exp_().scatter_add_(1, hit, torch.full_like(ends, -1))
        if masked:
            kept = cut(reads[2], part)[:, None]
            losses.mul_(kept)
            own.mul_(kept)
            total[1].add_(kept.sum(dtype=total.dtype) / tokens)
        total[0].add_(losses.sum() / tokens)
        rows[:, :valid] = own.div_(tokens)
        rows[:, valid:] = 0
