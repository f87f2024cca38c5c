"""A piece of attention in single steps, a slice of queries at a time, for what flash kernels do not
take: dropout, ALiBi's bias, and on CUDA wide precisions and wide heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels.attentions.heads import head_part, rank_slopes
from executor.kernels.dropout import kept_places, scale_of
from executor.kernels.slices import HeadSlice, row_slices, wide_dtype
from executor.rank_context import RankContext
from topologies.records import record
from workload.models.documents import ends
from workload.op import Op

Tensors = Sequence[torch.Tensor]
SQUARES = 10  # squares of scores, probabilities, places and gradients that a slice holds at once


@record
class Piece:
    """Some of a rank's queries, and keys at hand that they see: all of them or, if `causal`, none
    that come later. `rows` and `columns` are their positions in the `sequence`, `part` says which
    heads they have."""

    part: HeadSlice
    queries: slice
    keys: slice
    causal: bool
    rows: torch.Tensor
    columns: torch.Tensor
    sequence: int

    def of(self, qkv: Tensors) -> Tensors:
        """The piece's queries, keys and values."""
        q, k, v = qkv
        return q[:, :, self.queries], k[:, :, self.keys], v[:, :, self.keys]


def forward(
    op: Op, piece: Piece, qkv: Tensors, at: RankContext
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context and log-sum-exp over the keys of the piece alone."""
    q, k, v = (t.to(wide_dtype(t)) for t in qkv)
    out, sums = q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1])
    for rows in _rows(q, k, at):
        scores, left = _scores(op, piece, (q, k), rows, at)
        sums[:, :, rows] = scores.logsumexp(-1)
        weights = (scores - _finite(sums[:, :, rows, None])).exp_()
        out[:, :, rows] = _times(weights, left) @ v
    return out, sums


def backward(op: Op, piece: Piece, qkv: Tensors, about: Tensors, at: RankContext) -> Tensors:
    """The gradients of queries, keys and values; `about` has the gradient of the whole context, the
    context and its log-sum-exp."""
    q, k, v = (t.to(wide_dtype(t)) for t in qkv)
    grad, context, sums = (t.to(q.dtype) for t in about)
    d_q, d_k, d_v = (torch.zeros_like(t) for t in (q, k, v))
    scale = op.attributes["width"] ** -0.5
    for rows in _rows(q, k, at):
        scores, left = _scores(op, piece, (q, k), rows, at)
        weights = (scores - sums[:, :, rows, None]).exp_()
        d_out = grad[:, :, rows]
        d_v.add_(_times(weights, left).mT @ d_out)
        d = _times(d_out @ v.mT, left)
        d.sub_((d_out * context[:, :, rows]).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
        d_q[:, :, rows] = d @ k
        d_k.add_(d.mT @ q[:, :, rows])
    return d_q, d_k, d_v


def _finite(sums: torch.Tensor) -> torch.Tensor:
    """Zero in place of minus infinity, which a query has that sees none of the keys."""
    return sums.masked_fill(sums == -torch.inf, 0)


def _rows(q: torch.Tensor, k: torch.Tensor, at: RankContext) -> Iterator[slice]:
    """Slices of queries whose squares stay within the scratch."""
    count, heads, tokens, _ = q.shape
    return row_slices(tokens, SQUARES * count * heads * k.shape[2] * q.itemsize, at)


def _scores(
    op: Op, piece: Piece, pair: Tensors, rows: slice, at: RankContext
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Some queries' scores, and what probabilities are multiplied by where there is dropout."""
    q, k = pair
    scores = (q[:, :, rows] @ k.mT).mul_(op.attributes["width"] ** -0.5)
    distance = piece.rows[rows, None] - piece.columns
    slopes = rank_slopes(op, q, at)
    if slopes is not None:
        scores.sub_(slopes[piece.part.heads, None, None] * distance)
    if piece.causal:
        scores.masked_fill_(distance < 0, -torch.inf)
    if op.attributes.keys() & {"document", "documents"}:
        of_rows, of_columns = (document_of(op, at) for at in (piece.rows[rows], piece.columns))
        apart = of_rows[:, None] != of_columns
        scores.masked_fill_(apart, -torch.inf)
    if "window" in op.attributes:
        scores.masked_fill_(distance >= op.attributes["window"], -torch.inf)
    if "rate" not in op.attributes:
        return scores, None
    left = kept_places(op, _places(op, piece, rows, at), at)
    return scores, left.to(scores.dtype).mul_(scale_of(op))


def document_of(op: Op, places: torch.Tensor) -> torch.Tensor:
    """The numbers of the documents that some positions are in."""
    if "documents" not in op.attributes:
        return places // int(op.attributes["document"])
    behind = torch.tensor(ends(op.attributes["documents"]), device=places.device)
    return torch.bucketize(places, behind, right=True)


def _places(op: Op, piece: Piece, rows: slice, at: RankContext) -> torch.Tensor:
    """Where in the flat scores of the step's batch those of some queries are."""
    part, heads = piece.part, op.attributes["heads"]
    first = at.first_sequence(op.micro_batch, op.attributes["sequences"], op.part)
    count = torch.arange(part.sequences.start, part.sequences.stop, device=at.device) + first
    own = torch.arange(part.heads.start, part.heads.stop, device=at.device)
    index, parts = head_part(op, at)
    own += index * heads
    lines = count[:, None] * (parts * heads) + own
    lines = lines[..., None] * piece.sequence + piece.rows[rows]
    places: torch.Tensor = lines[..., None] * piece.sequence + piece.columns
    return places


def _times(weights: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
    return weights if left is None else weights * left
