"""Squared ReLU: the square of what is above zero, of rows that scores may weigh.

Source: So et al., Primer (2109.08668), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import cut, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def squared_relu(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The activation; with scores each row times its own."""
    out = torch.clamp(reads[0], min=0, out=writes[0]).square_()
    for scores in reads[1:]:
        out.mul_(scores.to(out.dtype)[:, None])


def squared_relu_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of the activation's input, and with scores of these too."""
    grad, inner, *scores = reads
    for part in wide_rows(inner, at):
        own, above = cut(grad, part), cut(inner, part).clamp(min=0)
        for each in scores:
            cut(writes[1], part).copy_((above.square() * own).sum(1, dtype=writes[1].dtype))
            own = own * cut(each, part).to(own.dtype)[:, None]
        cut(writes[0], part).copy_(above.mul_(own).mul_(2))
