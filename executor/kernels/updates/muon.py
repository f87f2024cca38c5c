"""Muon beside its matmuls: momentum, matrices made of tiles and cut into them, the update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from executor.kernels.optimizer import copy_masters, decay_rates
from executor.rank_context import RankContext
from workload.op import Op
from workload.rules.muon import EPS, RMS

Tensors = Sequence[torch.Tensor]


def momentum(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """u <- mu u + (1 - mu) g, and of the new u mu u + (1 - mu) g in the gradient's place
    (Nesterov's), with a copy in the compute precision if that is another."""
    count, share = len(reads) // 2, op.attributes["momentum"]
    grads, means = list(writes[:count]), list(writes[count : 2 * count])
    torch._foreach_lerp_(means, grads, 1 - share)
    torch._foreach_lerp_(grads, means, share)
    if len(writes) > 2 * count:
        torch._foreach_copy_(list(writes[2 * count :]), grads)


def merge_tiles(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Put a weight's gathered tiles together into its matrices, of norm 1 each.

    The tiles of all ranks along heads stand side by side, one such row for each rank along the
    width of the stream.
    """
    widths, heads = (at.grid.size(*axes) for axes in op.attributes["tiled"])
    tiles = reads[0].view(widths, heads, -1)
    for width in range(widths):
        for head in range(heads):
            for part, place in _places(op, tiles[width, head], writes, at, (width, head)):
                place.copy_(part)
    for matrix in writes:
        norms = torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)
        matrix.div_(norms.clamp_(min=EPS))


def take_tile(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Take this rank's tile out of a weight's matrices, each scaled to the mean square of AdamW's
    updates; zeros may follow it."""
    own = [at.part(axes) for axes in op.attributes["tiled"]]
    writes[0].view(-1).zero_()
    places = _places(op, writes[0], reads, at, own)
    for (part, place), matrix in zip(places, reads, strict=True):
        torch.mul(place, RMS * math.sqrt(max(matrix.shape[-2:])), out=part)


def stacked_matmul(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """C = A B of each matrix of two stacks, in the form that the op names; with a third stack D
    and `weights` (u, v) u D + v A B."""
    form = op.attributes["form"]
    a, b = (m if letter == "N" else m.mT for m, letter in zip(reads, form, strict=False))
    if len(reads) == 3:
        beta, alpha = op.attributes["weights"]
        torch.baddbmm(reads[2], a, b, beta=beta, alpha=alpha, out=writes[0])
    else:
        torch.bmm(a, b, out=writes[0])


def muon(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Decay, then a step along each weight's update, of whose tile this rank takes its part."""
    rates, lr = decay_rates(op, at), at.adamw.lr
    trained = writes[: len(rates)]
    every = zip(trained, reads, rates, op.attributes["flat"], strict=False)
    for weight, tile, rate, flat in every:
        count = weight.numel()
        start = at.part(flat) * count
        weight.mul_(1 - lr * rate)
        weight.view(-1).add_(tile.view(-1)[start : start + count], alpha=-lr)
    copy_masters(op, trained, writes[len(rates) :])


def _places(
    op: Op, tile: torch.Tensor, matrices: Tensors, at: RankContext, tiles: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each matrix of a weight, or stack of them, the part of a tile that is its, and where it
    stands in it; `tiles` says which tile it is along the width of the stream, and along heads."""
    which = dict(zip(op.attributes["tiled"], tiles, strict=True))
    down, along = op.attributes["split"]
    every = [
        matrix.mT if turned else matrix
        for matrix, turned in zip(matrices, op.attributes["on_side"], strict=True)
    ]
    rows = every[0].shape[-2] // at.grid.size(*down)
    columns = [matrix.shape[-1] // at.grid.size(*along) for matrix in every]
    stack = every[0].shape[:-2]
    whole = tile.view(-1)[: math.prod(stack) * rows * sum(columns)].view(*stack, rows, -1)
    for part, matrix, wide in zip(whole.split_with_sizes(columns, -1), every, columns, strict=True):
        own = matrix.narrow(-2, rows * which[down], rows)
        yield part, own.narrow(-1, wide * which[along], wide)
