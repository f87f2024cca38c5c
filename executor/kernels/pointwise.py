"""Elementwise ops, copies and row sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from executor.place import Place
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def gelu(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """GELU by the tanh approximation (GPT-2)."""
    functions: Any = torch._C._nn
    functions.gelu(reads[0], approximate="tanh", out=writes[0])


def gelu_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradient of GELU, in place of the gradient of its output."""
    ops: Any = torch.ops.aten
    ops.gelu_backward.grad_input(reads[0], reads[1], approximate="tanh", grad_input=writes[0])


def swiglu(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """silu(gate) * up, of gate and up side by side (Llama). Source: Shazeer (2002.05202)."""
    gate, up = reads[0].chunk(2, 1)
    torch.mul(F.silu(gate), up, out=writes[0])


def swiglu_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradients of gate and up, side by side."""
    grad, (gate, up) = reads[0], reads[1].chunk(2, 1)
    d_gate, d_up = writes[0].chunk(2, 1)
    d_up.copy_(F.silu(gate).mul_(grad))
    d_gate.copy_(torch.ops.aten.silu_backward(grad * up, gate))


def add(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Add the second operand to the first, in place; a bias is added to every row."""
    writes[0].add_(reads[1])


def cast(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Copy into another precision."""
    writes[0].copy_(reads[0])


def column_sum(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Sum over rows, in the gradient's precision: the gradient of a bias."""
    if op.attributes["first"]:
        torch.sum(reads[0], 0, dtype=writes[0].dtype, out=writes[0])
    else:
        writes[0].add_(reads[0].sum(0, dtype=writes[0].dtype))


def accumulate(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Add a micro-batch's gradient to the step's; the first one overwrites."""
    part = reads[0].view(-1)
    if op.attributes["first"]:
        writes[0].copy_(part)
    else:
        writes[0].add_(part)


def merge_columns(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Whole rows from the stacked column parts that an all-gather over y delivers."""
    parts, rows, width = reads[0].shape
    writes[0].view(rows, parts, width).copy_(reads[0].transpose(0, 1))


def take_columns(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """This rank's columns of whole rows."""
    width = writes[0].shape[1]
    start = at.index("y") * width
    writes[0].copy_(reads[0][:, start : start + width])


def fence(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Nothing: what it waits for is over."""


def zero(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Set to zero."""
    writes[0].zero_()
