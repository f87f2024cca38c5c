"""The core's output times the sigmoid of its gate, the last band of the fused tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
COPIES = 4  # of a row of the core's output in wide precision that a slice holds


def output_gate(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Write context times sigmoid(gate)."""
    context, out = reads[0], writes[0]
    gate, wide = _gate(reads[1], context), wide_dtype(context)
    for part in row_slices(len(context), _line_bytes(context), at):
        out[part].copy_(context[part].to(wide) * gate[part].to(wide).sigmoid())


def output_gate_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Write the gradient of the context, and that of the gate in its band of the fused tensor's."""
    grad, context, fused = reads
    gate, of_gate, wide = _gate(fused, context), _gate(writes[1], context), wide_dtype(context)
    for part in row_slices(len(context), _line_bytes(context), at):
        share, d = gate[part].to(wide).sigmoid(), grad[part].to(wide)
        of_gate[part].copy_(d * context[part].to(wide) * share * (1 - share))
        writes[0][part].copy_(d * share)


def _gate(fused: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    return fused[:, -context.shape[1] :]


def _line_bytes(context: torch.Tensor) -> int:
    return COPIES * context.shape[1] * wide_dtype(context).itemsize
