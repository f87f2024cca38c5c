"""The attention core in single steps: batched matmuls on the fused tensors, and the softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.attention import bias_of, heads_of, tokens_of
from executor.place import Place
from workload.op import Op

Tensors = Sequence[torch.Tensor]
BANDS = ("queries", "keys", "values")


def batched_matmul(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """C = A B for each sequence and head of keys, A and B transposed as the form says.

    The heads of queries that share a key stand below each other, as rows of one matrix.
    """
    *sources, target = op.attributes["operands"]
    form, count = op.attributes["form"], op.attributes["count"]
    a, b = (_by_head(op, t, part) for t, part in zip(reads, sources, strict=True))
    a, b = (t.reshape(count, -1, t.shape[-1]) for t in (a, b))
    a, b = (a if form[0] == "N" else a.mT), (b if form[1] == "N" else b.mT)
    alpha = op.attributes["width"] ** -0.5 if op.attributes["scaled"] else 1.0
    out = _by_head(op, writes[0], target)
    if target == "square":
        whole = out.view(count, a.shape[1], b.shape[2])
        torch.baddbmm(whole, a, b, beta=0, alpha=alpha, out=whole)
    else:
        product = torch.bmm(a, b)
        out.copy_(product.view(out.shape) if alpha == 1 else product.mul_(alpha).view(out.shape))


def softmax(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Probabilities from scores, keys after the query left out, and with ALiBi's bias."""
    scores = reads[0]
    bias = bias_of(op, scores, at)
    if bias is None:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        masked = scores.masked_fill(later, -torch.inf)
    else:
        masked = scores + bias
    torch.softmax(masked, -1, out=writes[0])


def softmax_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradient of the scores, in place of that of the probabilities."""
    grad, probabilities = reads
    ops = torch.ops.aten
    writes[0].copy_(ops._softmax_backward_data(grad, probabilities, -1, grad.dtype))


def _by_head(op: Op, tensor: torch.Tensor, part: str) -> torch.Tensor:
    """A view (sequences, heads, sequence, width) of a part of a tensor; a square is one already."""
    if part == "square":
        return tensor
    if part == "context":
        return tensor.view(tokens_of(op, tensor)).transpose(1, 2)
    return heads_of(op, tensor)[BANDS.index(part)]
