"""Copies around all-to-alls that trade rows of all heads for all rows of some heads.

What is sent, and what comes, is (ranks, rows, columns): for or from each rank of context, rows of a
rank and columns of some heads, whose bands of queries, keys and values stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]


def split_heads(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rows of all heads, by the rank that gets the heads."""
    for whole, part in _heads(op, reads[0], writes[0]):
        part.copy_(whole)


def join_heads(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rows of all heads from what the ranks of these heads sent."""
    for whole, part in _heads(op, writes[0], reads[0]):
        whole.copy_(part)


def split_tokens(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """All rows of some heads, by the rank that has the rows."""
    for whole, part in _tokens(op, reads[0], writes[0]):
        part.copy_(whole)


def join_tokens(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """All rows of some heads, by position, from what the ranks of these rows sent."""
    for whole, part in _tokens(op, writes[0], reads[0]):
        whole.copy_(part)


def _heads(op: Op, whole: torch.Tensor, parts: torch.Tensor) -> Pairs:
    """For each band its columns of a tensor of all heads, (ranks, rows, columns), and its part."""
    ranks, first = len(parts), 0
    for width in op.attributes["bands"]:
        columns = whole[:, ranks * first : ranks * (first + width)]
        yield columns.view(-1, ranks, width).transpose(0, 1), parts[:, :, first : first + width]
        first += width


def _tokens(op: Op, whole: torch.Tensor, parts: torch.Tensor) -> Pairs:
    """For each rank and each of its two chunks the rows of a tensor of whole sequences, and those
    of the rank's part."""
    sequences, columns = op.attributes["sequences"], whole.shape[-1]
    ranks = len(parts)
    chunks = whole.view(sequences, 2 * ranks, -1, columns)
    own = parts.view(ranks, sequences, 2, -1, columns)
    for rank in range(ranks):
        yield chunks[:, rank], own[rank, :, 0]
        yield chunks[:, 2 * ranks - 1 - rank], own[rank, :, 1]
