"""The attention core on fused query, key and value, and the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from executor.kernels.dropout import kept, scale_of
from executor.place import Place
from workload.op import Op

Tensors = Sequence[torch.Tensor]
Bias = torch.Tensor | None


def attention(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Causal attention of fused query, key and value; writes context and log-sum-exp."""
    q, k, v = _expanded(op, reads[0])
    context, logsumexp = writes
    bias = bias_of(op, reads[0], at)
    if _has_flash(op, reads[0], bias):
        out, lse = _flash(q, k, v, bias)
        logsumexp.copy_(lse)
    else:
        out = _plain(q, k, v, bias, _left(op, q, at))
        logsumexp.zero_()
    context.view(tokens_of(op, context)).copy_(out.transpose(1, 2))


def attention_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradients of query, key and value, laid out as the fused tensor is."""
    grad, qkv, context, logsumexp = reads
    expanded = _expanded(op, qkv)
    bias = bias_of(op, qkv, at)
    d = grad.view(tokens_of(op, grad)).transpose(1, 2)
    if _has_flash(op, qkv, bias):
        out = context.view(tokens_of(op, context)).transpose(1, 2)
        grads = _flash_grad(d, expanded, out, logsumexp, bias)
    else:
        leaves = [t.detach().requires_grad_() for t in expanded]
        with torch.enable_grad():
            again = _plain(leaves[0], leaves[1], leaves[2], bias, _left(op, qkv, at))
        grads = torch.autograd.grad(again, leaves, d)
    for target, part in zip(heads_of(op, writes[0]), grads, strict=True):
        target.copy_(_summed(part, target.shape[1]))


def rope(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Rotate queries and keys by their positions, in place.

    Element i of a head turns with element i + width/2, by position * base^(-2 i / width): the
    "rotate half" order of Llama's checkpoints for Hugging Face.
    Source: Su et al. (RoFormer, 2104.09864), section 3.4.2.
    """
    _turn(op, writes[0], forward=True)


def rope_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Rotate the gradients of queries and keys back, in place."""
    _turn(op, writes[0], forward=False)


def _turn(op: Op, qkv: torch.Tensor, *, forward: bool) -> None:
    width, sequence, base = (op.attributes[key] for key in ("width", "sequence", "base"))
    wide = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, width, 2, dtype=wide, device=qkv.device) / -width
    positions = torch.arange(sequence, dtype=wide, device=qkv.device)
    angles = torch.outer(positions, torch.pow(base, exponents))
    cos, sin = angles.cos(), angles.sin() if forward else -angles.sin()
    for heads in heads_of(op, qkv)[:2]:
        first, second = heads.chunk(2, -1)
        turned = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(turned)


def alibi_slopes(heads: int) -> torch.Tensor:
    """The slope of each head: powers of 2^(-8 / heads), in float64.

    If there are no power of two of heads, those of the next one: every second, then the others.
    Source: Press et al. (2108.12409), section 3, and their released code.
    """
    whole = 1 << (heads - 1).bit_length()
    slopes = torch.exp2(torch.arange(1, whole + 1, dtype=torch.float64) * -8 / whole)
    return slopes if whole == heads else torch.cat([slopes[1::2], slopes[::2]])[:heads]


def bias_of(op: Op, qkv: torch.Tensor, at: Place) -> Bias:
    """What ALiBi adds to the scores of this rank's heads, with the causal mask; None without it.

    (1, heads, sequence, sequence), so memory goes with the sequence's square.
    """
    if not op.attributes["alibi"]:
        return None
    heads, sequence = op.attributes["heads"], op.attributes["sequence"]
    slopes = alibi_slopes(heads * at.grid.x)[at.index("x") * heads :][:heads]
    positions = torch.arange(sequence, device=qkv.device)
    distance = positions[:, None] - positions
    wide = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    bias = slopes.to(qkv.device, wide)[:, None, None] * -distance
    return bias.masked_fill_(distance < 0, -torch.inf)[None].to(qkv.dtype)


def heads_of(op: Op, qkv: torch.Tensor) -> list[torch.Tensor]:
    """Views of queries, keys and values, each (sequences, heads, sequence, width)."""
    keys = ("heads", "kv_heads", "width", "sequence")
    heads, kv_heads, width, sequence = (op.attributes[key] for key in keys)
    counts = (heads, kv_heads, kv_heads)
    rows = qkv.view(-1, sequence, sum(counts) * width)
    parts = rows.split_with_sizes([n * width for n in counts], -1)
    return [
        part.view(-1, sequence, n, width).transpose(1, 2)
        for part, n in zip(parts, counts, strict=True)
    ]


def _expanded(op: Op, qkv: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values with as many heads each: neighbouring queries share a key."""
    group = op.attributes["heads"] // op.attributes["kv_heads"]
    q, k, v = heads_of(op, qkv)
    return [q, k, v] if group == 1 else [q, *(t.repeat_interleave(group, 1) for t in (k, v))]


def _summed(grad: torch.Tensor, heads: int) -> torch.Tensor:
    """The gradient of `heads` heads from that of the copies that the queries used."""
    count, copies, *rest = grad.shape
    return grad if copies == heads else grad.reshape(count, heads, -1, *rest).sum(2)


def tokens_of(op: Op, tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """The shape (sequences, sequence, heads, width) of a context or its gradient."""
    heads, width, sequence = (op.attributes[key] for key in ("heads", "width", "sequence"))
    return (tensor.shape[0] // sequence, sequence, heads, width)


def _has_flash(op: Op, tensor: torch.Tensor, bias: Bias) -> bool:
    """CUDA's flash kernels take 16-bit types without a bias; others use a local graph.

    So does dropout, since the kernels draw in a way that depends on how heads are split.
    """
    if "rate" in op.attributes:
        return False
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.device.type == "cpu" or (half and bias is None)


def _left(op: Op, qkv: torch.Tensor, at: Place) -> torch.Tensor | None:
    """What probabilities are multiplied by, where the model has dropout."""
    if "rate" not in op.attributes:
        return None
    heads, sequence, rows = (op.attributes[key] for key in ("heads", "sequence", "rows"))
    mask = kept(op, (rows // sequence, heads, sequence, sequence), at)
    return mask.to(qkv.dtype).mul_(scale_of(op))


def _plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Bias, left: torch.Tensor | None
) -> torch.Tensor:
    if left is not None:
        scores = (q @ k.mT).mul(q.shape[-1] ** -0.5)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        masked = scores.masked_fill(later, -torch.inf) if bias is None else scores + bias
        return torch.matmul(masked.softmax(-1).mul(left), v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Bias
) -> tuple[torch.Tensor, torch.Tensor]:
    ops: Any = torch.ops.aten
    if q.device.type == "cpu":
        kernel = ops._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(q, k, v, 0.0, bias is None, attn_mask=bias)
    else:
        out, lse = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2]
    return out, lse


def _flash_grad(
    grad: torch.Tensor, qkv: Tensors, out: torch.Tensor, lse: torch.Tensor, bias: Bias
) -> tuple[torch.Tensor, ...]:
    ops: Any = torch.ops.aten
    if grad.device.type == "cpu":
        backward = ops._scaled_dot_product_flash_attention_for_cpu_backward
        return tuple(backward(grad, *qkv, out, lse, 0.0, bias is None, attn_mask=bias))
    length = qkv[0].shape[2]
    seed = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    offset = torch.zeros((), dtype=torch.uint64, device=grad.device)
    backward = ops._scaled_dot_product_flash_attention_backward
    args = (grad, *qkv, out, lse, None, None, length, length, 0.0, True, seed, offset)
    return tuple(backward(*args))
