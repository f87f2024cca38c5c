"""The attention core on fused query, key and value, and the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch

from executor.kernels.attentions import stepwise
from executor.kernels.attentions.flash import FLASH_WIDTHS, flash, flash_grad, has_flash
from executor.kernels.attentions.heads import (
    add_to_heads,
    heads_of,
    own_heads,
    repeated,
    summed,
    tokens_of,
    value_width,
)
from executor.kernels.attentions.rotation import turning_rates
from executor.kernels.context import pieces
from executor.kernels.context.positions import positions
from executor.kernels.slices import head_slices, row_slices, wide_dtype
from executor.launching.device_use import CUDNN
from executor.rank_context import RankContext
from workload.models.documents import lengths
from workload.op import Op
from workload.op_attributes import Attributes

Tensors = Sequence[torch.Tensor]
PACKED: Final = "documents"
WHOLE = slice(None)


def attention(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Causal attention of fused query, key and value; writes context and log-sum-exp."""
    if "context" in op.attributes:
        pieces.forward(op, reads, writes, at)
        return
    context, logsumexp = writes
    out = context.view(tokens_of(op, context)).transpose(1, 2)
    sinks = [own_heads(op, t, at) for t in reads[1:]]
    for own, tokens in documents_of(op):
        parts = [_of(tokens, t) for t in heads_of(op, reads[0])]
        _forward(own, parts, (_of(tokens, out), _of(tokens, logsumexp)), sinks, at)


def _forward(op: Op, parts: Tensors, writes: Tensors, sinks: Tensors, at: RankContext) -> None:
    """Write context and log-sum-exp of queries, keys and values of whole sequences or documents."""
    out, logsumexp = writes
    if not has_flash(op, out, at):
        stepwise.forward(op, parts, out, at, *sinks)
        logsumexp.zero_()
        return
    for part in head_slices(op, len(out), _head_bytes(op, out, own=1), at):
        q = part.queries(parts[0])
        k, v = (repeated(part.keys(t), q.shape[1]) for t in parts[1:])
        found, lse = flash(q, k, v, cudnn=at.attention == CUDNN)
        part.queries(out).copy_(found)
        part.queries(logsumexp).copy_(lse)


def attention_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of query, key and value, laid out as the fused tensor is."""
    if "context" in op.attributes:
        pieces.backward(op, reads, writes, at)
        return
    grad, qkv, context, logsumexp = reads[:4]
    d, out = (t.view(tokens_of(op, t)).transpose(1, 2) for t in (grad, context))
    sinks, of_sinks = [own_heads(op, t, at) for t in reads[4:5]], list[torch.Tensor]()
    for own, tokens in documents_of(op):
        parts, targets = ([_of(tokens, p) for p in heads_of(op, t)] for t in (qkv, writes[0]))
        about = [_of(tokens, t) for t in (d, out, logsumexp)]
        found = _backward(own, parts, targets, about, sinks, at)
        of_sinks += [] if found is None else [found]
    if of_sinks:
        add_to_heads(op, writes[1], torch.stack(of_sinks).sum(0), at)


def _backward(
    op: Op, parts: Tensors, targets: Tensors, about: Tensors, sinks: Tensors, at: RankContext
) -> torch.Tensor | None:
    """Write the gradients of whole sequences or documents; returns that of sinks, if any."""
    d, out, logsumexp = about
    if not has_flash(op, d, at):
        return stepwise.backward(op, d, parts, targets, at, *sinks)
    for part in head_slices(op, len(out), _head_bytes(op, d, own=3), at):
        q = part.queries(parts[0])
        k, v = (repeated(part.keys(t), q.shape[1]) for t in parts[1:])
        own, sums = part.queries(out), part.queries(logsumexp).contiguous()
        cudnn = at.attention == CUDNN
        d_q, *d_kv = flash_grad(part.queries(d), (q, k, v), own, sums, cudnn=cudnn)
        part.queries(targets[0]).copy_(d_q)
        for target, found in zip(targets[1:], d_kv, strict=True):
            part.keys(target).copy_(summed(found, part.keys(target).shape[1]))
    return None


def documents_of(op: Op) -> Iterator[tuple[Op, slice]]:
    """The op on each document of its sequences, and the document's tokens; on whole sequences where
    it knows of no documents, or of documents of one length, which are sequences to it."""
    if PACKED not in op.attributes:
        yield op, WHOLE
        return
    start = 0
    for length in lengths(op.attributes[PACKED]):
        own: Attributes = {**op.attributes, "sequence": length}
        del own[PACKED]
        yield replace(op, attributes=own), slice(start, start + length)
        start += length


def _of(tokens: slice, tensor: torch.Tensor) -> torch.Tensor:
    """Some tokens of (sequences, heads, tokens, ...)."""
    return tensor if tokens is WHOLE else tensor[:, :, tokens]


def rope(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rotate queries and keys by their positions, in place.

    Element i of a head turns with element i + width/2, by position * base^(-2 i / width) or a rate
    that is scaled: the "rotate half" order of Llama's checkpoints for Hugging Face.
    Source: Su et al. (RoFormer, 2104.09864), section 3.4.2.
    """
    _turn(op, writes[0], at, forward=True)


def rope_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rotate the gradients of queries and keys back, in place."""
    _turn(op, writes[0], at, forward=False)


def _turn(op: Op, qkv: torch.Tensor, at: RankContext, *, forward: bool) -> None:
    heads = op.attributes["heads"] + op.attributes["kv_heads"]
    turn(op, qkv.view(len(qkv), -1, op.attributes["width"])[:, :heads], at, forward=forward)


def turn(op: Op, parts: torch.Tensor, at: RankContext, *, forward: bool) -> None:
    """Rotate heads, (rows, heads, width), by the positions of their rows, in place."""
    sequence, (count, heads, width) = op.attributes["sequence"], parts.shape
    wide = wide_dtype(parts)
    rates, scale = turning_rates(op, width, wide, parts.device)
    halves = parts.view(count, heads, 2, width // 2)
    for part in row_slices(count, 3 * heads * width * wide.itemsize, at):
        rows = positions(torch.arange(part.start, part.stop, device=parts.device), sequence, at)
        angles = torch.outer(rows.to(wide), rates)[:, None]
        cos, sin = angles.cos(), angles.sin() if forward else -angles.sin()
        if scale != 1:
            cos.mul_(scale), sin.mul_(scale)
        first, second = halves[part].unbind(2)
        turned = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(turned)


def _head_bytes(op: Op, qkv: torch.Tensor, own: int) -> int:
    """Bytes that a fused kernel holds for one head of one sequence: `own` tensors like it that the
    kernel gives, keys and values for each query, and what is padded."""
    about, values = op.attributes, value_width(op)
    shared = 2 if about["kv_heads"] < about["heads"] else 0
    odd = qkv.device.type == "cuda" and about["width"] % FLASH_WIDTHS
    wider = own + 2 if odd or about["width"] != values else 0
    widest = max(about["width"], values)
    return (own + shared + wider) * int(about["sequence"] * widest) * qkv.itemsize
