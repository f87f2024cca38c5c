"""gpt-oss' SwiGLU: gate and up clamped, a sharper sigmoid, and one added to up.

With g = min(gate, 7) and u = min(max(up, -7), 7) it is g sigmoid(1.702 g) (u + 1).
Source: OpenAI, gpt-oss, gpt_oss/torch/model.py, swiglu. Gate and up stand side by side here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import cut, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
LIMIT, SHARPNESS = 7.0, 1.702
COPIES = 6  # of rows that a slice holds at once


def clamped_swiglu(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The activation of gate and up side by side; with scores each row times its own."""
    for part in wide_rows(reads[0], at, COPIES):
        gate, up = _clamped(cut(reads[0], part))
        out = gate.mul_(_sigmoid(gate)).mul_(up.add_(1))
        for scores in reads[1:]:
            out.mul_(cut(scores, part).to(out.dtype)[:, None])
        cut(writes[0], part).copy_(out)


def clamped_swiglu_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of gate and up, side by side; with scores those of the rows' scores too."""
    grad, inner, *scores = reads
    for part in wide_rows(inner, at, COPIES):
        own, source = cut(grad, part), cut(inner, part)
        gate, up = _clamped(source)
        curve = _sigmoid(gate)
        slope = (1 - curve).mul_(SHARPNESS * gate).add_(1).mul_(curve)
        swished = gate * curve
        up.add_(1)
        for each in scores:
            cut(writes[1], part).copy_((swished * up * own).sum(1, dtype=writes[1].dtype))
            own = own * cut(each, part).to(own.dtype)[:, None]
        raw_gate, raw_up = source.chunk(2, 1)
        d_gate, d_up = cut(writes[0], part).chunk(2, 1)
        d_gate.copy_(slope.mul_(up).mul_(own).mul_(raw_gate <= LIMIT))
        d_up.copy_(swished.mul_(own).mul_(raw_up.abs() <= LIMIT))


def _clamped(source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = source.chunk(2, 1)
    return gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)


def _sigmoid(gate: torch.Tensor) -> torch.Tensor:
    return (SHARPNESS * gate).sigmoid_()
