"""The attention core in single steps: batched matmuls on the fused tensors, and the softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.kernels.attentions.heads import (
    bias_scores,
    heads_of,
    rank_slopes,
    tokens_of,
    value_width,
)
from executor.kernels.slices import HeadSlice, cut, head_slices, wide_dtype, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
BANDS = ("queries", "keys", "values")


def batched_matmul(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """C = A B for each sequence and head of keys, A and B transposed as the form says.

    The heads of queries that share a key stand below each other, as rows of one matrix.
    """
    *sources, target = op.attributes["operands"]
    form = op.attributes["form"]
    alpha = op.attributes["width"] ** -0.5 if op.attributes["scaled"] else 1.0
    operands = [_by_head(op, t, part) for t, part in zip(reads, sources, strict=True)]
    out = _by_head(op, writes[0], target)
    sequence, width = op.attributes["sequence"], max(op.attributes["width"], value_width(op))
    for part in head_slices(op, len(out), 3 * sequence * width * out.itemsize, at):
        pairs = zip(operands, sources, strict=True)
        a, b = (_matrices(_part(t, name, part), part) for t, name in pairs)
        a, b = (a if form[0] == "N" else a.mT), (b if form[1] == "N" else b.mT)
        own = _part(out, target, part)
        if target == "square":
            whole = own.view(len(a), a.shape[1], b.shape[2])
            torch.baddbmm(whole, a, b, beta=0, alpha=alpha, out=whole)
        else:
            own.copy_(torch.bmm(a, b).mul_(alpha).view(own.shape))


def softmax(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Probabilities from scores, keys after the query left out, and with ALiBi's bias."""
    scores, out = (t.view(-1, t.shape[-1]) for t in (reads[0], writes[0]))
    heads, sequence = op.attributes["heads"], op.attributes["sequence"]
    slopes = rank_slopes(op, scores, at)
    for part in wide_rows(scores, at):
        lines = torch.arange(part.start, part.stop, device=scores.device)
        own = None if slopes is None else slopes[lines // sequence % heads]
        wide = cut(scores, part).to(wide_dtype(scores), copy=True)
        cut(out, part).copy_(bias_scores(wide, lines % sequence, own).softmax(-1))


def softmax_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of the scores, in place of that of the probabilities."""
    grad, probabilities, out = (t.view(-1, t.shape[-1]) for t in (*reads, writes[0]))
    ops: Any = torch.ops.aten
    for part in wide_rows(grad, at):
        own = ops._softmax_backward_data(cut(grad, part), cut(probabilities, part), -1, grad.dtype)
        cut(out, part).copy_(own)


def _part(tensor: torch.Tensor, name: str, part: HeadSlice) -> torch.Tensor:
    return part.keys(tensor) if name in ("keys", "values") else part.queries(tensor)


def _matrices(tensor: torch.Tensor, part: HeadSlice) -> torch.Tensor:
    """One matrix for each sequence and head of keys."""
    heads = part.kv_heads.stop - part.kv_heads.start
    return tensor.reshape(len(tensor) * heads, -1, tensor.shape[-1])


def _by_head(op: Op, tensor: torch.Tensor, part: str) -> torch.Tensor:
    """A view (sequences, heads, sequence, width) of a part of a tensor; a square is one already."""
    if part == "square":
        return tensor
    if part == "context":
        return tensor.view(tokens_of(op, tensor)).transpose(1, 2)
    return heads_of(op, tensor)[BANDS.index(part)]
