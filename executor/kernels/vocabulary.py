"""Embedding, positions and the cross-entropy over a vocabulary that x and y split."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.place import Place
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def embedding(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Rows of this rank's part of the table; zeros for tokens that another rank holds."""
    tokens, out = reads[0], writes[0]
    table = reads[1].view(-1, out.shape[1])
    local, elsewhere = _local(tokens, table.shape[0], at)
    torch.index_select(table, 0, local, out=out)
    out.masked_fill_(elsewhere[:, None], 0)


def embedding_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Add each token's gradient to its row, for the rows that this rank holds."""
    tokens, grad = reads
    table = writes[0].zero_()
    local, elsewhere = _local(tokens, table.shape[0], at)
    table.index_add_(0, local, grad.masked_fill(elsewhere[:, None], 0))


def position(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """This rank's columns of the embedding, plus the learned positions of its rows."""
    whole, table = reads
    sequence, width = table.shape
    start = at.index("y") * width
    columns = whole[:, start : start + width]
    if op.attributes["row_parts"] > 1:
        torch.add(columns, table[_positions(op, columns, at)], out=writes[0])
    else:
        out = writes[0].view(-1, sequence, width)
        torch.add(columns.view(-1, sequence, width), table, out=out)


def position_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Sum over the rows of a micro-batch that share a position."""
    grad, total = reads[0], writes[0]
    if op.attributes["row_parts"] > 1:
        places = _positions(op, grad, at)
        part = torch.zeros_like(total).index_add_(0, places, grad.to(total.dtype))
    else:
        part = grad.view(-1, *total.shape).sum(0, dtype=total.dtype)
    if op.attributes["first"]:
        total.copy_(part)
    else:
        total.add_(part)


def _positions(op: Op, rows: torch.Tensor, at: Place) -> torch.Tensor:
    """Where in its sequence each row is, of which x has so many parts."""
    first = at.index("x") * rows.shape[0]
    places = torch.arange(first, first + rows.shape[0], device=rows.device)
    return places % int(op.attributes["sequence"])


def loss_maximum(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Largest logit per row among this rank's part of the vocabulary, padding left out."""
    valid = _valid(op, reads[0], at)
    if valid:
        torch.amax(reads[0][:, :valid], 1, out=writes[0])
    else:
        writes[0].fill_(-torch.inf)


def loss_sums(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Per row the sum of exponentials and the target's logit, both relative to the maximum.

    The logits become their exponentials, in place; padded columns become zero.
    """
    logits, top, targets = reads
    sums = writes[0]
    logits.sub_(top[:, None])
    local, elsewhere = _local(targets, logits.shape[1], at)
    sums[1] = logits.gather(1, local[:, None])[:, 0].masked_fill_(elsewhere, 0)
    logits.exp_()
    logits[:, _valid(op, logits, at) :] = 0
    torch.sum(logits, 1, out=sums[0])


def loss_mean(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Add this micro-batch's share of the mean cross-entropy over the step's tokens."""
    sums = reads[0]
    part = (sums[0].log() - sums[1]).sum() / op.attributes["tokens"]
    if op.attributes["first"]:
        writes[0].copy_(part)
    else:
        writes[0].add_(part)


def loss_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """(softmax - one-hot) / tokens, from the exponentials and their sum."""
    exponentials, sums, targets = reads
    grad, tokens = writes[0], op.attributes["tokens"]
    torch.mul(exponentials, (1 / (sums[0] * tokens))[:, None], out=grad)
    local, elsewhere = _local(targets, grad.shape[1], at)
    hit = elsewhere.to(grad.dtype).sub_(1).div_(tokens)
    grad.scatter_add_(1, local[:, None], hit[:, None])


def _local(tokens: torch.Tensor, rows: int, at: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers within this rank's part, and which tokens are not in it (their row is 0)."""
    local = tokens - at.vocabulary_part * rows
    elsewhere = (local < 0) | (local >= rows)
    return local.masked_fill_(elsewhere, 0), elsewhere


def _valid(op: Op, logits: torch.Tensor, at: Place) -> int:
    """How many of this rank's columns are not padding."""
    columns = logits.shape[1]
    return min(max(int(op.attributes["vocab"]) - at.vocabulary_part * columns, 0), columns)
