"""RMSNorm over equal groups of a row's columns, with a gain for each column."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.norms import add_totals
from executor.kernels.slices import row_slices
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
COPIES = 5  # of a row in wide precision that a slice holds


def group_norm(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Normalise; keeps the reciprocal root of each group's mean square."""
    source, gain = (_by_group(op, each) for each in reads)
    out, rstd = _by_group(op, writes[0]), writes[1].view(-1, op.attributes["groups"])
    for part in row_slices(len(source), _row_bytes(reads[0], rstd), at):
        wide = source[part].to(rstd.dtype)
        roots = wide.square().mean(-1).add_(op.attributes["eps"]).rsqrt_()
        rstd[part].copy_(roots)
        out[part].copy_((wide * roots[..., None]).mul_(gain))


def group_norm_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of the rows in place, and that of the gain.

    dx = rstd (g dy - normal mean(g dy normal)), over the columns of each group.
    """
    grad, source, gain = (_by_group(op, each) for each in (writes[0], reads[1], reads[3]))
    rstd = reads[2].view(-1, op.attributes["groups"])
    wide_gain = gain.to(rstd.dtype)
    total = torch.zeros_like(wide_gain)
    for part in row_slices(len(source), _row_bytes(reads[1], rstd), at):
        roots = rstd[part][..., None]
        normal, own = source[part] * roots, grad[part].to(rstd.dtype)
        total.add_((own * normal).sum(0))
        own = own * wide_gain
        means = (own * normal).mean(-1, keepdim=True)
        grad[part].copy_((own - normal.mul_(means)).mul_(roots))
    add_totals(op, writes[1:], [total.view(-1)])


def _by_group(op: Op, tensor: torch.Tensor) -> torch.Tensor:
    """A view whose last two dimensions are groups and their columns."""
    return tensor.view(*tensor.shape[:-1], op.attributes["groups"], -1)


def _row_bytes(source: torch.Tensor, rstd: torch.Tensor) -> int:
    return COPIES * source.shape[1] * rstd.itemsize
