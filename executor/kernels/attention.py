"""The attention core on fused query, key and value, and the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from executor.kernels import stepwise
from executor.kernels.heads import heads_of, repeated, summed, tokens_of
from executor.kernels.slices import head_slices, row_slices, wide_dtype
from executor.launching.device_use import CUDNN, FLASH, MATH, WIDEST
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
# Heads of CUDA's flash kernels: a multiple of 8 wide, at most 256.
# Source: PyTorch 2.13, aten/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash.
FLASH_WIDTHS = 8


def attention(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Causal attention of fused query, key and value; writes context and log-sum-exp."""
    parts = heads_of(op, reads[0])
    context, logsumexp = writes
    out = context.view(tokens_of(op, context)).transpose(1, 2)
    if not _is_fused(op, reads[0], at):
        stepwise.forward(op, parts, out, at)
        logsumexp.zero_()
        return
    for part in head_slices(op, len(out), _head_bytes(op, reads[0], own=1), at):
        q = part.queries(parts[0])
        k, v = (repeated(part.keys(t), q.shape[1]) for t in parts[1:])
        found, lse = _fused(q, k, v, cudnn=at.attention == CUDNN)
        part.queries(out).copy_(found)
        part.queries(logsumexp).copy_(lse)


def attention_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of query, key and value, laid out as the fused tensor is."""
    grad, qkv, context, logsumexp = reads
    parts, targets = heads_of(op, qkv), heads_of(op, writes[0])
    d, out = (t.view(tokens_of(op, t)).transpose(1, 2) for t in (grad, context))
    if not _is_fused(op, qkv, at):
        stepwise.backward(op, d, parts, targets, at)
        return
    for part in head_slices(op, len(out), _head_bytes(op, qkv, own=3), at):
        q = part.queries(parts[0])
        k, v = (repeated(part.keys(t), q.shape[1]) for t in parts[1:])
        about = (part.queries(t) for t in (out, logsumexp))
        cudnn = at.attention == CUDNN
        d_q, *d_kv = _fused_grad(part.queries(d), (q, k, v), *about, cudnn=cudnn)
        part.queries(targets[0]).copy_(d_q)
        for target, own in zip(targets[1:], d_kv, strict=True):
            part.keys(target).copy_(summed(own, part.keys(target).shape[1]))


def rope(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rotate queries and keys by their positions, in place.

    Element i of a head turns with element i + width/2, by position * base^(-2 i / width): the
    "rotate half" order of Llama's checkpoints for Hugging Face.
    Source: Su et al. (RoFormer, 2104.09864), section 3.4.2.
    """
    _turn(op, writes[0], at, forward=True)


def rope_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rotate the gradients of queries and keys back, in place."""
    _turn(op, writes[0], at, forward=False)


def _turn(op: Op, qkv: torch.Tensor, at: RankContext, *, forward: bool) -> None:
    width, sequence, base = (op.attributes[key] for key in ("width", "sequence", "base"))
    heads = op.attributes["heads"] + op.attributes["kv_heads"]
    wide = wide_dtype(qkv)
    exponents = torch.arange(0, width, 2, dtype=wide, device=qkv.device) / -width
    rates = torch.pow(base, exponents)
    halves = qkv.view(len(qkv), -1, 2, width // 2)[:, :heads]
    for part in row_slices(len(qkv), 3 * heads * width * wide.itemsize, at):
        rows = torch.arange(part.start, part.stop, device=qkv.device) % sequence
        angles = torch.outer(rows.to(wide), rates)[:, None]
        cos, sin = angles.cos(), angles.sin() if forward else -angles.sin()
        first, second = halves[part].unbind(2)
        turned = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(turned)


def _head_bytes(op: Op, qkv: torch.Tensor, own: int) -> int:
    """Bytes that a fused kernel holds for one head of one sequence: `own` tensors like it that the
    kernel gives, keys and values for each query, and what is padded."""
    about = op.attributes
    shared = 2 if about["kv_heads"] < about["heads"] else 0
    wider = own + 2 if qkv.device.type == "cuda" and about["width"] % FLASH_WIDTHS else 0
    return (own + shared + wider) * int(about["sequence"] * about["width"]) * qkv.itemsize


def _is_fused(op: Op, tensor: torch.Tensor, at: RankContext) -> bool:
    """Fused kernels take no bias and, on CUDA, 16-bit types alone.

    Nor do they take dropout, since they draw in a way that depends on how heads are split.
    """
    if at.attention == MATH or "rate" in op.attributes or op.attributes["alibi"]:
        return False
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.device.type == "cpu" or (half and op.attributes["width"] <= WIDEST[FLASH])


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cudnn: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context and log-sum-exp by flash kernels, or by cuDNN's."""
    ops: Any = torch.ops.aten
    if q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return out, lse
    scale, wide = q.shape[-1] ** -0.5, [padded(t) for t in (q, k, v)]
    if cudnn:
        forward = ops._scaled_dot_product_cudnn_attention
        out, lse = forward(*wide, None, True, 0.0, True, scale=scale)[:2]
        return out[..., : q.shape[-1]], lse.squeeze(-1)
    out, lse = ops._scaled_dot_product_flash_attention(*wide, 0.0, True, scale=scale)[:2]
    return out[..., : q.shape[-1]], lse


def _fused_grad(
    grad: torch.Tensor, qkv: Tensors, out: torch.Tensor, lse: torch.Tensor, *, cudnn: bool
) -> tuple[torch.Tensor, ...]:
    ops: Any = torch.ops.aten
    if grad.device.type == "cpu":
        backward = ops._scaled_dot_product_flash_attention_for_cpu_backward
        return tuple(backward(grad, *qkv, out, lse, 0.0, True))
    length, width = qkv[0].shape[2:]
    seed = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    offset = torch.zeros((), dtype=torch.uint64, device=grad.device)
    wide = [padded(t) for t in (grad, *qkv, out)]
    if cudnn:
        backward = ops._scaled_dot_product_cudnn_attention_backward
        apart = None, None, None, length, length  # no bias, and sequences of one length
        args = (*wide, lse[..., None], seed[0], offset, *apart, 0.0, True)
    else:
        backward = ops._scaled_dot_product_flash_attention_backward
        args = (*wide, lse, None, None, length, length, 0.0, True, seed, offset)
    return tuple(d[..., :width] for d in backward(*args, scale=width**-0.5))


def padded(heads: torch.Tensor, multiple: int = FLASH_WIDTHS) -> torch.Tensor:
    """Heads with zeros after their width, up to a multiple: attention with the scale of the true
    width is the same."""
    missing = -heads.shape[-1] % multiple
    return F.pad(heads, (0, missing)) if missing else heads
