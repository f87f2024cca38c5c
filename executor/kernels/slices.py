"""Slices that bound what a kernel allocates beside its operands.

A program counts the operands of its ops and nothing else, so a kernel that needs temporaries works
on so few rows or heads at a time that they stay within `Place.scratch_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op


def row_slices(rows: int, row_bytes: int, at: RankContext) -> Iterator[slice]:
    """Slices of so many rows, of which each row takes `row_bytes` of temporaries."""
    height = max(at.scratch_bytes // max(row_bytes, 1), 1)
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


def cut(tensor: torch.Tensor, part: slice) -> torch.Tensor:
    """A slice of a tensor's first dimension; the tensor itself where that is all of it, since a
    view takes longer than the question."""
    return tensor if part.stop - part.start == len(tensor) else tensor[part]


def cut_columns(tensor: torch.Tensor, part: slice) -> torch.Tensor:
    """A slice of a matrix's columns, likewise."""
    return tensor if part.stop - part.start == tensor.shape[1] else tensor[:, part]


def wide_rows(tensor: torch.Tensor, at: RankContext, copies: int = 4) -> Iterator[slice]:
    """Slices of a matrix's rows for a kernel that holds `copies` of them in its wide precision."""
    rows, columns = tensor.shape
    return row_slices(rows, copies * columns * wide_dtype(tensor).itemsize, at)


def wide_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The precision in which a kernel computes on such a tensor: fp32, of fp64 fp64."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@record
class HeadSlice:
    """Some sequences, some heads of keys and values, and the heads of queries that share these."""

    sequences: slice
    kv_heads: slice
    heads: slice

    def queries(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of queries, or of anything else of (sequences, heads, ...)."""
        return _block(tensor, self.sequences, self.heads)

    def keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of keys or values."""
        return _block(tensor, self.sequences, self.kv_heads)


def _block(tensor: torch.Tensor, first: slice, second: slice) -> torch.Tensor:
    """Slices of the first two dimensions, without a view where they are whole."""
    lengths = (first.stop - first.start, second.stop - second.start)
    return tensor if tensor.shape[:2] == lengths else tensor[first, second]


def head_slices(op: Op, sequences: int, head_bytes: int, at: RankContext) -> Iterator[HeadSlice]:
    """Slices of an attention's heads, of which each head of queries takes `head_bytes`.

    Whole sequences, or else some heads of one, so that a contiguous tensor's part is contiguous.
    """
    heads, kv_heads = op.attributes["heads"], op.attributes["kv_heads"]
    group = heads // kv_heads
    most = max(at.scratch_bytes // max(group * head_bytes, 1), 1)
    if most >= kv_heads:
        for part in row_slices(sequences, heads * head_bytes, at):
            yield HeadSlice(part, slice(0, kv_heads), slice(0, heads))
        return
    for sequence in range(sequences):
        for start in range(0, kv_heads, most):
            end = min(start + most, kv_heads)
            own = slice(start * group, end * group)
            yield HeadSlice(slice(sequence, sequence + 1), slice(start, end), own)
