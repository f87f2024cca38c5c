"""The causal convolution of a Mamba-2 layer: each column by itself, over the last few tokens.

The fused tensor has z, x, B, C and dt side by side; x, B and C are convolved, a bias is added, and
SiLU follows. The taps are a row for each token, the last row for the token itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from executor.kernels.attentions.heads import add_to_bands, own_bands
from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
COPIES = 5  # of a column of a sequence in wide precision that a slice holds


def ssd_conv(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Convolve and apply SiLU."""
    made = reads[0]
    taps, bias = (_own(op, each, at) for each in reads[1:])
    source, out = _sequences(op, _convolved(op, made)), _sequences(op, writes[0])
    for sequence, part in _slices(op, source, at):
        before = _before_silu(source[sequence, :, part], taps[:, part], bias[part])
        out[sequence, :, part].copy_(F.silu(before))


def ssd_conv_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of what is convolved, within those of the fused tensor, of taps and of the bias."""
    grad, made = reads[:2]
    taps, bias = (_own(op, each, at) for each in reads[2:4])
    source, upstream = _sequences(op, _convolved(op, made)), _sequences(op, grad)
    target = _sequences(op, _convolved(op, writes[0]))
    wide = wide_dtype(made)
    of_taps, of_bias = (torch.zeros_like(each, dtype=wide) for each in (taps, bias))
    for sequence, part in _slices(op, source, at):
        own = source[sequence, :, part].to(wide)
        before = _before_silu(own, taps[:, part], bias[part])
        curve = before.sigmoid()
        d = upstream[sequence, :, part] * curve * (1 + before * (1 - curve))
        of_bias[part] += d.sum(0)
        total = torch.zeros_like(own)
        for late in range(min(len(taps), len(own))):
            row = len(taps) - 1 - late
            length = len(own) - late
            total[:length].addcmul_(d[late:], taps[row, part].to(wide))
            of_taps[row, part] += (d[late:] * own[:length]).sum(0)
        target[sequence, :, part].copy_(total)
    for of_tile, total in zip(writes[1:], (of_taps, of_bias), strict=True):
        add_to_bands(op, of_tile, total, _bands(op), at)


def _before_silu(source: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Sums over the last tokens of a sequence, plus the bias, in wide precision."""
    own = source.to(wide_dtype(source))
    total = bias.to(own.dtype).expand_as(own).clone()
    for late in range(min(len(taps), len(own))):
        row = taps[len(taps) - 1 - late].to(own.dtype)
        total[late:].addcmul_(own[: len(own) - late], row)
    return total


def _convolved(op: Op, fused: torch.Tensor) -> torch.Tensor:
    """The columns of x, B and C: behind those of z, before those of dt."""
    first, *states = _bands(op)
    return fused[:, first : 2 * first + sum(states)]


def _bands(op: Op) -> tuple[int, int, int]:
    """The widths of x, B and C."""
    heads, groups, width, state = (op.attributes[k] for k in ("heads", "groups", "width", "state"))
    return heads * width, groups * state, groups * state


def _own(op: Op, of_tile: torch.Tensor, at: RankContext) -> torch.Tensor:
    """Taps or biases of an op's columns."""
    return torch.cat(own_bands(op, of_tile, _bands(op), at), -1)


def _sequences(op: Op, rows: torch.Tensor) -> torch.Tensor:
    """A view (sequences, tokens, columns) of rows."""
    tokens = op.attributes["sequence"]
    return rows.as_strided(
        (len(rows) // tokens, tokens, rows.shape[1]),
        (tokens * rows.stride(0), rows.stride(0), 1),
        rows.storage_offset(),
    )


def _slices(op: Op, source: torch.Tensor, at: RankContext) -> Iterator[tuple[int, slice]]:
    sequences, tokens, columns = source.shape
    column_bytes = COPIES * tokens * wide_dtype(source).itemsize
    for sequence in range(sequences):
        for part in row_slices(columns, column_bytes, at):
            yield sequence, part
