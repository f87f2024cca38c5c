"""Masks of tokens by places of experts, (T, S), and what they say of scores.

Letters as in `executor.kernels.experts`. Source: GShard (2006.16668), algorithm 2; DeepSpeed-MoE,
deepspeed/moe/sharded_moe.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.experts import EMPTY
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def one_hot_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """A one where a token has a place, zeros elsewhere, given the `order`."""
    order, ones = reads[0], writes[0]
    ones.zero_()
    ones[_tokens(op, order), _numbers(order)] = (order != EMPTY).to(ones.dtype)


def weigh_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The score of a token's choice at its place, zero elsewhere, given the ones, `scores` and the
    `order`."""
    ones, scores, order = reads
    torch.mul(ones, scores.view(-1)[order.clamp(min=0)], out=writes[0])


def is_nonzero(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """One where an element is not zero, in the operand's shape."""
    torch.ne(reads[0], 0, out=writes[0])


def scores_of_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradient of each choice's score (T, k) from that of the weights (T, S), at its place;
    zero for what was dropped."""
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
