"""Matmuls and the attention core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from executor.place import Place
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def matmul(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """C = A B in the form that the op names: N as stored, T transposed; a third operand is a bias.

    Weights at rest are flat, so the second operand is viewed in the shape that the form implies.
    """
    m, n, k = (op.attributes[letter] for letter in "mnk")
    form = op.attributes["form"]
    a = reads[0].view((m, k) if form[0] == "N" else (k, m))
    b = reads[1].view((k, n) if form[1] == "N" else (n, k))
    a, b = (a if form[0] == "N" else a.t()), (b if form[1] == "N" else b.t())
    out = writes[0].view(m, n)
    if len(reads) == 3:
        torch.addmm(reads[2], a, b, out=out)
    else:
        torch.mm(a, b, out=out)


def attention(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Causal attention of fused query, key and value; writes context and log-sum-exp."""
    q, k, v = _heads(op, reads[0])
    context, logsumexp = writes
    if _has_flash(reads[0]):
        out, lse = _flash(q, k, v)
        logsumexp.copy_(lse)
    else:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        logsumexp.zero_()
    context.view(_tokens(op, context)).copy_(out.transpose(1, 2))


def attention_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradients of query, key and value, laid out as the fused tensor is."""
    grad, qkv, context, logsumexp = reads
    q, k, v = _heads(op, qkv)
    d = grad.view(_tokens(op, grad)).transpose(1, 2)
    if _has_flash(qkv):
        out = context.view(_tokens(op, context)).transpose(1, 2)
        grads = _flash_grad(d, (q, k, v), out, logsumexp)
    else:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            again = F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True)
        grads = torch.autograd.grad(again, leaves, d)
    for target, part in zip(_heads(op, writes[0]), grads, strict=True):
        target.copy_(part)


def _heads(op: Op, qkv: torch.Tensor) -> list[torch.Tensor]:
    heads, width, sequence = (op.attributes[key] for key in ("heads", "width", "sequence"))
    parts = qkv.view(-1, sequence, 3, heads, width).permute(2, 0, 3, 1, 4)
    return list(parts.unbind(0))


def _tokens(op: Op, tensor: torch.Tensor) -> tuple[int, int, int, int]:
    heads, width, sequence = (op.attributes[key] for key in ("heads", "width", "sequence"))
    return (tensor.shape[0] // sequence, sequence, heads, width)


def _has_flash(tensor: torch.Tensor) -> bool:
    """CUDA's flash kernels take 16-bit types alone; other types fall back to a local graph."""
    return tensor.device.type == "cpu" or tensor.dtype in (torch.bfloat16, torch.float16)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ops: Any = torch.ops.aten
    if q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    else:
        out, lse = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2]
    return out, lse


def _flash_grad(
    grad: torch.Tensor, qkv: tuple[torch.Tensor, ...], out: torch.Tensor, lse: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    ops: Any = torch.ops.aten
    if grad.device.type == "cpu":
        backward = ops._scaled_dot_product_flash_attention_for_cpu_backward
        return tuple(backward(grad, *qkv, out, lse, 0.0, True))
    length = qkv[0].shape[2]
    seed = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    offset = torch.zeros((), dtype=torch.uint64, device=grad.device)
    backward = ops._scaled_dot_product_flash_attention_backward
    args = (grad, *qkv, out, lse, None, None, length, length, 0.0, True, seed, offset)
    return tuple(backward(*args))
