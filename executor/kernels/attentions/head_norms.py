"""RMSNorm of each head of queries or of keys, in place within the fused tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.norms import add_totals
from executor.kernels.slices import row_slices
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
COPIES = 5  # of a row of heads in wide precision that a slice holds


def head_norm(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Normalise some heads; keeps what they were, and the reciprocal root of each mean square."""
    gain = reads[1]
    heads, source, rstd = _heads(op, writes[0]), _alike(op, writes[1]), _per_head(op, writes[2])
    for part in row_slices(len(heads), _line_bytes(op, rstd), at):
        own = heads[part]
        source[part].copy_(own)
        wide = own.to(rstd.dtype)
        roots = wide.square().mean(-1).add_(op.attributes["eps"]).rsqrt_()
        rstd[part].copy_(roots)
        own.copy_((wide * roots[..., None]).mul_(gain))


def head_norm_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of some heads in place, and that of the gain.

    dx = rstd (g dy - normal mean(g dy normal)), over the width of each head.
    """
    gain, heads = reads[3], _heads(op, writes[0])
    source, rstd = _alike(op, reads[1]), _per_head(op, reads[2])
    wide_gain = gain.to(rstd.dtype)
    total = torch.zeros_like(wide_gain)
    for part in row_slices(len(heads), _line_bytes(op, rstd), at):
        roots = rstd[part][..., None]
        normal, grad = source[part] * roots, heads[part].to(rstd.dtype)
        weighted = grad * normal
        total.add_(weighted.sum((0, 1)))
        means = (weighted @ wide_gain).div_(op.attributes["width"])[..., None]
        grad = (grad * wide_gain).sub_(normal.mul_(means)).mul_(roots)
        heads[part].copy_(grad)
    add_totals(op, writes[1:], [total])


def _heads(op: Op, fused: torch.Tensor) -> torch.Tensor:
    """A view (rows, heads, width) of the heads in question."""
    first = op.attributes["first_head"]
    every = fused.view(len(fused), -1, op.attributes["width"])
    return every[:, first : first + op.attributes["count"]]


def _alike(op: Op, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(len(tensor), op.attributes["count"], op.attributes["width"])


def _per_head(op: Op, stats: torch.Tensor) -> torch.Tensor:
    return stats.view(-1, op.attributes["count"])


def _line_bytes(op: Op, rstd: torch.Tensor) -> int:
    return COPIES * int(op.attributes["count"] * op.attributes["width"]) * rstd.itemsize
