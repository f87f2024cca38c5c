"""Biases of experts' linears, each on the rows of its expert, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.experts import parts_of
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def expert_bias(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add each expert's bias to its rows, in place; with scores each row's own times its score,
    and of that the share of one of so many `parts` that are summed later."""
    out, bias, counts, *scores = reads
    own = _by_expert(op, bias, out.shape[1])
    for number, part in parts_of(op, counts, len(out)):
        added = own[number][None]
        if scores:
            added = added * (scores[0][part, None] / op.attributes["parts"]).to(out.dtype)
        writes[0][part].add_(added)


def expert_bias_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The sum over each expert's rows; with scores that of rows times scores, and the gradient of
    the scores, of which this is one of so many `parts`. Zeros follow the biases' tile."""
    grad, counts, *weighted = reads
    writes[0].zero_()
    own = _by_expert(op, writes[0], grad.shape[1])
    for number, part in parts_of(op, counts, len(grad)):
        rows = grad[part]
        if weighted:
            scores, bias = weighted
            of_scores = rows @ _by_expert(op, bias, grad.shape[1])[number]
            writes[1][part].copy_(of_scores.div_(op.attributes["parts"]))
            rows = rows * scores[part, None].to(rows.dtype)
        own[number].copy_(rows.sum(0))


def _by_expert(op: Op, bias: torch.Tensor, width: int) -> torch.Tensor:
    local = op.attributes["count"]
    return bias.view(-1)[: local * width].view(local, width)
