"""PyTorch's fused attention: where there is any, and its calls on heads side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from executor.kernels.attentions.heads import value_width
from executor.launching.device_use import FLASH, MATH, WIDEST
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
# Heads of CUDA's flash kernels: a multiple of 8 wide, at most 256.
# Source: PyTorch 2.13, aten/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash.
FLASH_WIDTHS = 8


def has_flash(op: Op, tensor: torch.Tensor, at: RankContext) -> bool:
    """Fused kernels take no bias, window or sinks, nor keys at hand of several documents and, on
    CUDA, 16-bit types alone.

    Sinks beside keys at hand (`context`) are added to what they give. Nor do they take dropout,
    since they draw in a way that depends on how heads are split.
    """
    if at.attention == MATH or "rate" in op.attributes or op.attributes["alibi"]:
        return False
    if op.attributes.keys() & {"document", "documents"} and "context" in op.attributes:
        return False
    if "window" in op.attributes or ("sinks" in op.attributes and "context" not in op.attributes):
        return False
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    widest = max(op.attributes["width"], value_width(op))
    return tensor.device.type == "cpu" or (half and widest <= WIDEST[FLASH])


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = True,
    cudnn: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context and log-sum-exp of queries, keys and values, each (sequences, heads, tokens, width);
    if `causal` there are as many queries as keys. By flash kernels, or by cuDNN's."""
    ops: Any = torch.ops.aten
    scale, wide = q.shape[-1] ** -0.5, _equally_wide(q, k, v)
    if q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(*wide, 0.0, causal, scale=scale)
    elif cudnn:
        forward = ops._scaled_dot_product_cudnn_attention
        out, lse = forward(*wide, None, True, 0.0, causal, scale=scale)[:2]
        lse = lse.squeeze(-1)
    else:
        out, lse = ops._scaled_dot_product_flash_attention(*wide, 0.0, causal, scale=scale)[:2]
    return out[..., : v.shape[-1]], lse


def flash_grad(
    grad: torch.Tensor,
    qkv: Tensors,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool = True,
    cudnn: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The gradients of queries, keys and values. Of keys that are but a part, context and
    log-sum-exp are those of all."""
    ops: Any = torch.ops.aten
    (length, width), keys = qkv[0].shape[2:], qkv[1].shape[2]
    scale, wide = width**-0.5, _equally_wide(grad, *qkv, out)
    if grad.device.type == "cpu":
        backward = ops._scaled_dot_product_flash_attention_for_cpu_backward
        found = backward(*wide, lse, 0.0, causal, scale=scale)
        return tuple(d[..., : t.shape[-1]] for d, t in zip(found, qkv, strict=True))
    seed = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    offset = torch.zeros((), dtype=torch.uint64, device=grad.device)
    if cudnn:
        backward = ops._scaled_dot_product_cudnn_attention_backward
        apart = None, None, None, length, keys  # no bias, and sequences of one length
        args = (*wide, lse[..., None], seed[0], offset, *apart, 0.0, causal)
    else:
        backward = ops._scaled_dot_product_flash_attention_backward
        args = (*wide, lse, None, None, length, keys, 0.0, causal, seed, offset)
    found = backward(*args, scale=scale)
    return tuple(d[..., : t.shape[-1]] for d, t in zip(found, qkv, strict=True))


def _equally_wide(*heads: torch.Tensor) -> Tensors:
    """Heads as a kernel takes them: all of one width and, on CUDA, of a multiple."""
    widest = max(t.shape[-1] for t in heads)
    return [padded(t, widest, 1 if t.device.type == "cpu" else FLASH_WIDTHS) for t in heads]


def padded(heads: torch.Tensor, width: int = 0, multiple: int = FLASH_WIDTHS) -> torch.Tensor:
    """Heads with zeros after their own width, up to a multiple that is no less than `width`:
    attention with the scale of the true width is the same."""
    least = max(width, heads.shape[-1])
    missing = least + -least % multiple - heads.shape[-1]
    return F.pad(heads, (0, missing)) if missing else heads
