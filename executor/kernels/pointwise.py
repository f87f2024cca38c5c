"""Elementwise ops, copies and row sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.kernels.slices import cut, row_slices, wide_dtype, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def gelu(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """GELU by the tanh approximation (GPT-2)."""
    functions: Any = torch._C._nn
    functions.gelu(reads[0], approximate="tanh", out=writes[0])


def gelu_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of GELU, in place of the gradient of its output."""
    ops: Any = torch.ops.aten
    ops.gelu_backward.grad_input(reads[0], reads[1], approximate="tanh", grad_input=writes[0])


def swiglu(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """silu(gate) * up, of gate and up side by side (Llama). Source: Shazeer (2002.05202)."""
    functions: Any = torch._C._nn
    gate, up = reads[0].chunk(2, 1)
    functions.silu(gate, out=writes[0]).mul_(up)


def swiglu_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of gate and up, side by side."""
    functions: Any = torch._C._nn
    ops: Any = torch.ops.aten
    grad, (gate, up) = reads[0], reads[1].chunk(2, 1)
    d_gate, d_up = writes[0].chunk(2, 1)
    torch.mul(grad, up, out=d_gate)
    ops.silu_backward.grad_input(d_gate, gate, grad_input=d_gate)
    functions.silu(gate, out=d_up).mul_(grad)


def add(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add the second operand to the first, in place; a bias is added to every row."""
    writes[0].add_(reads[1])


def cast(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copy into another precision."""
    writes[0].copy_(reads[0])


def column_sum(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Sum over rows, in the gradient's precision: the gradient of a bias."""
    source, wide = reads[0], wide_dtype(reads[0])
    slices = list(wide_rows(source, at, copies=1))
    if len(slices) == 1 and op.attributes["first"]:
        torch.sum(source, 0, dtype=writes[0].dtype, out=writes[0])
        return
    total = torch.zeros(source.shape[1], dtype=wide, device=source.device)
    for part in slices:
        total.add_(cut(source, part).sum(0, dtype=wide))
    if op.attributes["first"]:
        writes[0].copy_(total)
    else:
        writes[0].add_(total)


def accumulate(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add a micro-batch's gradient to the step's; the first one overwrites."""
    source, total = reads[0].view(-1), writes[0].view(-1)
    if op.attributes["first"]:
        total.copy_(source)
        return
    for part in row_slices(len(source), total.itemsize, at):
        cut(total, part).add_(cut(source, part))


def accumulated(total: torch.Tensor, source: torch.Tensor, *, first: bool) -> None:
    """Add a micro-batch's small gradient to the step's; the first one overwrites."""
    if first:
        total.copy_(source)
    else:
        total.add_(source)


def merge_columns(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Whole rows from the stacked column parts that an all-gather over y delivers."""
    parts, rows, width = reads[0].shape
    writes[0].view(rows, parts, width).copy_(reads[0].transpose(0, 1))


def take_columns(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """This rank's columns of whole rows."""
    width = writes[0].shape[1]
    start = at.part_of("width") * width
    writes[0].copy_(reads[0][:, start : start + width])


def fence(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Nothing: what it waits for is over."""


def zero(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Set to zero."""
    writes[0].zero_()
