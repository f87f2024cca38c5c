"""Rows at places of experts, each multiplied by the score of the choice that has the place.

Letters as in `executor.kernels.experts`. Source: Tutel (2206.03382), tutel/impls/fast_dispatch.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.experts import EMPTY, placed
from executor.kernels.slices import wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def sum_weighted_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """For each token the sum of what is at its places times their scores, (T, hidden), in the order
    of its choices, of rows (S, hidden), `scores` and the `order`."""
    rows, scores, order = reads
    by_choice = _by_choice(op, order, len(writes[0]))
    writes[0].zero_()
    for part in wide_rows(writes[0], at, copies=2):
        for number in range(by_choice.shape[1]):
            own = by_choice[part, number]
            weights = torch.where(own == EMPTY, 0, scores[part, number]).to(rows.dtype)
            writes[0][part].add_(rows[own.clamp(min=0)].mul_(weights[:, None]))


def take_weighted_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The row of the token at each place times its score, (S, hidden); zeros where none is."""
    rows, scores, order = reads
    taken = torch.where(order == EMPTY, 0, scores.view(-1)[order.clamp(min=0)])
    torch.index_select(rows, 0, order.clamp(min=0) // op.attributes["topk"], out=writes[0])
    writes[0].mul_(taken.to(rows.dtype)[:, None])


def score_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradient of each choice's score, (T, k): its token's gradient (T, hidden) times the row
    at its place (S, hidden); zero for what was dropped."""
    grad, rows, order = reads
    by_choice = _by_choice(op, order, len(grad))
    for part in wide_rows(grad, at, copies=2):
        for number in range(by_choice.shape[1]):
            own = by_choice[part, number]
            found = rows[own.clamp(min=0)].mul_(grad[part]).sum(1, dtype=writes[0].dtype)
            writes[0][part, number] = torch.where(own == EMPTY, 0, found)


def _by_choice(op: Op, order: torch.Tensor, tokens: int) -> torch.Tensor:
    """The place of each token's choices."""
    topk = op.attributes["topk"]
    return placed(torch.arange(len(order), device=order.device), order, tokens * topk).view(
        -1, topk
    )
