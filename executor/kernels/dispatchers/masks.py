"""Masks of tokens by places of experts, and what they say of scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.experts import EMPTY
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def one_hot_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """A one where a token has a place, given which choice is sent to each place."""
    order, ones = reads[0], writes[0]
    ones.zero_()
    ones[_tokens(op, order), _numbers(order)] = (order != EMPTY).to(ones.dtype)


def weigh_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The score of a token's choice at its place; zero elsewhere."""
    ones, scores, order = reads
    torch.mul(ones, scores.view(-1)[order.clamp(min=0)], out=writes[0])


def is_nonzero(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """One where an element is not zero."""
    torch.ne(reads[0], 0, out=writes[0])


def scores_of_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradient of each choice's score from that of the weights, at its place; zero for what was
    dropped."""
    grad, ones, order = reads
    place = _tokens(op, order), _numbers(order)
    flat = grad.new_zeros(writes[0].numel() + 1)
    flat[torch.where(order == EMPTY, len(flat) - 1, order)] = grad[place] * ones[place]
    writes[0].view(-1).copy_(flat[:-1])


def _tokens(op: Op, order: torch.Tensor) -> torch.Tensor:
    """The token at each place, the first where there is none."""
    tokens: torch.Tensor = order.clamp(min=0) // op.attributes["topk"]
    return tokens


def _numbers(order: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(order), device=order.device)
