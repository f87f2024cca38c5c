"""Embedding, positions and the cross-entropy over a vocabulary that x and y split."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.context.positions import chunks, positions
from executor.kernels.slices import cut, row_slices, wide_dtype, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
TOKEN_BYTES = 64  # what row numbers and marks of a token take


def embedding(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rows of this rank's part of the table; zeros for tokens that another rank holds."""
    tokens, out = reads[0], writes[0]
    table = reads[1].view(-1, out.shape[1])
    for part in row_slices(len(tokens), TOKEN_BYTES, at):
        local, elsewhere = _local(cut(tokens, part), table.shape[0], at)
        torch.index_select(table, 0, local, out=cut(out, part))
        if elsewhere is not None:
            cut(out, part).masked_fill_(elsewhere[:, None], 0)


def embedding_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add each token's gradient to its row, for the rows that this rank holds.

    Tokens are sorted, and each row's gradients are summed in fp32, in their order, and rounded
    once: atomic additions of 16 bits would lose the small ones of frequent tokens. On a GPU every
    row is summed, so that the host need not know which tokens there are.
    """
    tokens, grad = reads
    table, wide = writes[0], wide_dtype(grad)
    rows = len(table)
    local, elsewhere = _local(tokens, rows, at)
    if elsewhere is not None:
        local.masked_fill_(elsewhere, rows)
    ordered, order = local.sort(stable=True)
    present = torch.arange(rows, device=ordered.device)
    if table.device.type == "cpu":  # on a GPU the host would wait to learn how many there are
        present = torch.unique_consecutive(ordered)
        present = present[present < rows]
        table.zero_()
    starts = torch.searchsorted(ordered, torch.cat([present, present.new_full((1,), rows)]))
    for columns in row_slices(grad.shape[1], 2 * wide.itemsize * (len(present) + len(tokens)), at):
        own = grad[:, columns].index_select(0, order).to(wide)
        sums = torch.segment_reduce(own, "sum", offsets=starts, axis=0, unsafe=True)
        table[:, columns].index_copy_(0, present, sums.to(table.dtype))


def position(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """This rank's columns of the embedding, plus the learned positions of its rows."""
    whole, table = reads
    sequence, width = table.shape
    start = at.part_of("width") * width
    columns = whole[:, start : start + width]
    if _has_parts(op, at):
        for part in row_slices(len(columns), 2 * width * table.itemsize, at):
            own = table[_positions(op, part, columns, at)]
            torch.add(cut(columns, part), own, out=cut(writes[0], part))
    else:
        out = writes[0].view(-1, sequence, width)
        torch.add(columns.view(-1, sequence, width), table, out=out)


def position_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Sum over the rows of a micro-batch that share a position."""
    grad, total = reads[0], writes[0]
    if op.attributes["first"]:
        total.zero_()
    if _has_parts(op, at):
        for part in wide_rows(grad, at, copies=2):
            total.index_add_(0, _positions(op, part, grad, at), cut(grad, part).to(total.dtype))
        return
    sequences = grad.view(-1, *total.shape)
    for part in wide_rows(total, at, copies=1 + len(sequences)):
        cut(total, part).add_(sequences[:, part].sum(0, dtype=wide_dtype(total)))


def _has_parts(op: Op, at: RankContext) -> bool:
    """Whether a rank's rows are not whole sequences."""
    return op.attributes["row_parts"] > 1 or at.grid.parts_of("positions") > 1


def _positions(op: Op, part: slice, rows: torch.Tensor, at: RankContext) -> torch.Tensor:
    """Where in its sequence each row of a slice is, of which x may have parts."""
    first = at.part_of("rows") * rows.shape[0] if op.attributes["row_parts"] > 1 else 0
    places = torch.arange(first + part.start, first + part.stop, device=rows.device)
    return positions(places, int(op.attributes["sequence"]), at)


def loss_maximum(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Largest logit per row among this rank's part of the vocabulary, padding left out."""
    valid = _valid(op, reads[0], at)
    if valid:
        torch.amax(reads[0][:, :valid], 1, out=writes[0])
    else:
        writes[0].fill_(-torch.inf)


def loss_sums(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Per row the sum of exponentials and the target's logit, both relative to the maximum.

    The logits become their exponentials, in place; padded columns become zero.
    """
    logits, top, targets = reads
    sums = writes[0]
    logits.sub_(top[:, None])
    for part in row_slices(len(targets), TOKEN_BYTES, at):
        local, elsewhere = _local(cut(targets, part), logits.shape[1], at)
        found = cut(logits, part).gather(1, local[:, None])[:, 0]
        if elsewhere is not None:
            found.masked_fill_(elsewhere, 0)
        sums[1, part] = found
    logits.exp_()
    valid = _valid(op, logits, at)
    if valid < logits.shape[1]:
        logits[:, valid:] = 0
    torch.sum(logits, 1, out=sums[0])


def loss_mean(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add this micro-batch's share of the mean cross-entropy over the step's tokens; of a loss that
    leaves tokens out by hashes its sum over the kept ones and their number, both divided by all
    tokens; of one that is `masked` its sum over the kept ones, likewise."""
    sums, total, tokens = reads[0], writes[0], _tokens(op)
    masked = len(total) > 1 or "masked" in op.attributes
    if op.attributes["first"]:
        total.zero_()
    for part in row_slices(sums.shape[1], TOKEN_BYTES, at):
        own = sums[0, part].log() - sums[1, part]
        if masked:
            own = own.mul_(cut(reads[1], part))
        if len(total) > 1:
            total[1].add_(cut(reads[1], part).sum(dtype=total.dtype) / tokens)
        total[0].add_(own.sum() / tokens)


def loss_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """(softmax - one-hot) / tokens, from the exponentials and their sum; zeros in the rows of
    tokens that the loss leaves out."""
    exponentials, sums, targets, *masks = reads
    grad, tokens = writes[0], _tokens(op)
    for part in wide_rows(grad, at, copies=2):
        factors = (1 / (sums[0, part] * tokens))[:, None]
        for mask in masks:
            factors.mul_(mask[part, None])
        torch.mul(cut(exponentials, part), factors, out=cut(grad, part))
        local, elsewhere = _local(cut(targets, part), grad.shape[1], at)
        if elsewhere is None:
            hit = torch.full_like(local, -1 / tokens, dtype=grad.dtype)
        else:
            hit = elsewhere.to(grad.dtype).sub_(1).div_(tokens)
        for mask in masks:
            hit.mul_(cut(mask, part))
        cut(grad, part).scatter_add_(1, local[:, None], hit[:, None])


def next_targets(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The token so many behind each target, and which there are: behind a sequence's last there is
    none, and in their place are its first ones. Of a sequence in parts those behind each of a
    rank's chunks are told."""
    ahead, sequence = int(op.attributes["ahead"]), int(op.attributes["sequence"])
    parts = chunks(sequence, at)
    shape = -1, len(parts), parts[0].stop - parts[0].start
    targets, after, kept = (t.view(shape) for t in (reads[0], *writes))
    behind = reads[1].view(*targets.shape[:2], -1) if len(parts) > 1 else targets
    longer = torch.cat([targets, behind[..., :ahead]], 2)
    after.copy_(longer[..., ahead:])
    for number, part in enumerate(parts):
        kept[:, number] = 1
        kept[:, number, max(sequence - ahead - part.start, 0) :] = 0


def _tokens(op: Op) -> float:
    """What a loss is divided by: the step's tokens, over its weight in that of the step."""
    tokens: float = op.attributes["tokens"]
    return tokens / op.attributes["weight"] if "weight" in op.attributes else tokens


def _local(
    tokens: torch.Tensor, rows: int, at: RankContext
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Row numbers within this rank's part, and which tokens are not in it (their row is 0); None
    where this rank has the whole vocabulary."""
    if at.grid.parts_of("vocabulary") == 1:
        return tokens, None
    local = tokens - at.vocabulary_part * rows
    elsewhere = (local < 0) | (local >= rows)
    return local.masked_fill_(elsewhere, 0), elsewhere


def _valid(op: Op, logits: torch.Tensor, at: RankContext) -> int:
    """How many of this rank's columns are not padding."""
    columns = logits.shape[1]
    return min(max(int(op.attributes["vocab"]) - at.vocabulary_part * columns, 0), columns)
