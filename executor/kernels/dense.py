"""Matmuls, and the transposes that put an operand into the layout of another form."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.eight_bits import quantised
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def matmul(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """C = A B in the form that the op names: N as stored, T transposed; a third operand is a bias,
    or with `weights` (u, v) a matrix D of u D + v A B.

    Weights at rest are flat, so operands are viewed in the shape that the form implies. Zeros may
    follow a weight's tile, and follow that of its gradient.
    """
    if "formats" in op.attributes:
        quantised.matmul(op, reads, writes, at)
        return
    m, n, k = op.mnk
    form = op.attributes["form"]
    a = _matrix(reads[0], *((m, k) if form[0] == "N" else (k, m)))
    b = _matrix(reads[1], *((k, n) if form[1] == "N" else (n, k)))
    a, b = (a if form[0] == "N" else a.t()), (b if form[1] == "N" else b.t())
    out = _matrix(writes[0], m, n)
    if writes[0].numel() > m * n:
        writes[0].view(-1)[m * n :].zero_()
    if len(reads) == 3:
        beta, alpha = op.attributes.get("weights", (1, 1))
        torch.addmm(reads[2], a, b, beta=beta, alpha=alpha, out=out)
    else:
        torch.mm(a, b, out=out)


def transpose(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copy a matrix transposed; a weight at rest is flat, so the op says its shape."""
    shape = (op.attributes["rows"], op.attributes["columns"])
    writes[0].copy_(_matrix(reads[0], *shape).t())


def _matrix(tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A tensor, but for the zeros that may follow, as a matrix. No view is made without need: it
    takes longer than the question."""
    if tensor.shape == (rows, columns):
        return tensor
    if tensor.numel() > rows * columns:
        tensor = tensor.view(-1)[: rows * columns]
    return tensor.view(rows, columns)
