"""Attention in single steps, a slice of heads and of queries at a time, for what flash kernels do
not take: dropout, ALiBi's bias, windows, sinks, and on CUDA wide precisions and wide heads.

Scores and probabilities are computed in fp32 (of fp64 operands in fp64), those of a window for the
keys alone that some of the queries see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels.attentions.heads import (
    bias_scores,
    rank_slopes,
    repeated,
    summed,
    value_width,
)
from executor.kernels.dropout import Block, kept, scale_of, scores_block
from executor.kernels.slices import HeadSlice, head_slices, row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
SQUARES = 8  # squares of scores, probabilities and their gradients that a slice holds at once


def forward(
    op: Op, qkv: Tensors, out: torch.Tensor, at: RankContext, sinks: torch.Tensor | None = None
) -> None:
    """Write the context of queries, keys and values, all (sequences, heads, sequence, width);
    `sinks` are logits of the heads."""
    slopes = rank_slopes(op, qkv[0], at)
    for part, (q, k, v) in _slices(op, qkv, at):
        for rows in _rows(op, q, at):
            weights, left, _ = _probabilities(op, q, k, part, rows, at, slopes, sinks)
            seen = _seen(op, rows)
            part.queries(out)[:, :, rows].copy_(_times(weights, left) @ v[:, :, seen])


def backward(
    op: Op,
    grad: torch.Tensor,
    qkv: Tensors,
    targets: Tensors,
    at: RankContext,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Write the gradients of queries, keys and values from that of the context; returns that of
    `sinks`, if there are any.

    With P = softmax(S), D the dropped P, O = D V: dV = D' dO, dD = dO V', dP likewise dropped,
    dS = P (dP - sum(dP P)), dQ = dS K and dK = dS' Q, both times the scale of the scores. A sink,
    whose probability multiplies nothing, has the sum of its -P sum(dP P).
    """
    of_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=wide_dtype(sinks))
    scale, slopes = op.attributes["width"] ** -0.5, rank_slopes(op, qkv[0], at)
    for part, (q, k, v) in _slices(op, qkv, at):
        d_k, d_v = torch.zeros_like(k), torch.zeros_like(v)
        for rows in _rows(op, q, at):
            weights, left, sunk = _probabilities(op, q, k, part, rows, at, slopes, sinks)
            seen, d_out = _seen(op, rows), part.queries(grad)[:, :, rows].to(q.dtype)
            d_v[:, :, seen].add_(_times(weights, left).mT @ d_out)
            d = _times(d_out @ v[:, :, seen].mT, left)
            sums = (d * weights).sum(-1, keepdim=True)
            if of_sinks is not None and sunk is not None:
                of_sinks[part.heads].sub_((sunk * sums).sum((0, 2, 3)))
            d.sub_(sums).mul_(weights).mul_(scale)
            part.queries(targets[0])[:, :, rows].copy_(d @ k[:, :, seen])
            d_k[:, :, seen].add_(d.mT @ q[:, :, rows])
        for target, own in zip(targets[1:], (d_k, d_v), strict=True):
            part.keys(target).copy_(summed(own, part.keys(target).shape[1]))
    return of_sinks


def _slices(op: Op, qkv: Tensors, at: RankContext) -> Iterator[tuple[HeadSlice, Tensors]]:
    """Slices of heads, and their queries, keys and values in wide precision, one key a query."""
    wide = wide_dtype(qkv[0])
    sequence, width = op.attributes["sequence"], op.attributes["width"]
    columns = 3 * width + 2 * value_width(op)
    head_bytes = sequence * (SQUARES * sequence + columns) * wide.itemsize
    for part in head_slices(op, len(qkv[0]), head_bytes, at):
        q = part.queries(qkv[0]).to(wide)
        k, v = (repeated(part.keys(t).to(wide), q.shape[1]) for t in qkv[1:])
        yield part, (q, k, v)


def _rows(op: Op, q: torch.Tensor, at: RankContext) -> Iterator[slice]:
    """Slices of queries whose squares stay within the scratch; with a window as many as it has."""
    count, heads, sequence, _ = q.shape
    each = op.attributes.get("window", sequence)
    for rows in row_slices(sequence, SQUARES * count * heads * sequence * q.itemsize, at):
        for start in range(rows.start, rows.stop, each):
            yield slice(start, min(start + each, rows.stop))


def _seen(op: Op, rows: slice) -> slice:
    """The keys that some of these queries see; without a window all, as the mask has it."""
    if "window" not in op.attributes:
        return slice(0, op.attributes["sequence"])
    return slice(max(rows.start - op.attributes["window"] + 1, 0), rows.stop)


def _probabilities(
    op: Op,
    q: torch.Tensor,
    k: torch.Tensor,
    part: HeadSlice,
    rows: slice,
    at: RankContext,
    slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The softmax of some queries' scores, what it is multiplied by where there is dropout, and
    the sinks' part of it."""
    seen = _seen(op, rows)
    scores = (q[:, :, rows] @ k[:, :, seen].mT).mul_(op.attributes["width"] ** -0.5)
    queries = torch.arange(rows.start, rows.stop, device=q.device)
    own = None if slopes is None else slopes[part.heads, None]
    how = {"first": seen.start, "window": op.attributes.get("window", 0)}
    weights, sunk = _softmax(bias_scores(scores, queries, own, **how), part, sinks)
    if "rate" not in op.attributes:
        return weights, None, sunk
    left = kept(op, _block(op, part, rows, at), at)
    return weights, left.to(weights.dtype).mul_(scale_of(op)), sunk


def _softmax(
    scores: torch.Tensor, part: HeadSlice, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Probabilities of keys and, if there is one, of the sink as the last column."""
    if sinks is None:
        return scores.softmax(-1), None
    own = sinks[part.heads].to(scores.dtype)[:, None, None]
    both = torch.cat([scores, own.expand(*scores.shape[:-1], 1)], -1).softmax(-1)
    return both[..., :-1], both[..., -1:]


def _block(op: Op, part: HeadSlice, rows: slice, at: RankContext) -> Block:
    count = part.sequences.stop - part.sequences.start
    whole = scores_block(op, at)
    seen = _seen(op, rows)
    starts = (part.sequences.start, part.heads.start, rows.start, seen.start)
    heads = part.heads.stop - part.heads.start
    shape = (count, heads, rows.stop - rows.start, seen.stop - seen.start)
    return whole.part(starts, shape)


def _times(weights: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
    return weights if left is None else weights * left
