"""Values in 8 bits with a scale for each block: of a matrix, and of rows that bring their scales.

Scales are kept as what values are multiplied by to have their size again; a power of two as its
exponent, 127 more. Sources of the rules: `workload/recipes/table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.op import Op
from workload.recipes.table import LARGEST, POWERS, Block

Tensors = Sequence[torch.Tensor]
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST_EXPONENT = {"e4m3": 8}  # of what the format holds
BIAS = 127  # of an exponent in 8 bits
LEAST = 1e-12  # no scale is made from less


def quantise_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rows (rows, columns) in 8 bits, each with the scales of its blocks behind its values."""
    (source,), (sent,) = reads, writes
    wide = wide_dtype(source)
    columns, length = source.shape[1], op.attributes["length"]
    for part in row_slices(len(source), 4 * columns * wide.itemsize, at):
        values, scales = cast_in_blocks(op, source[part].to(wide), (1, length))
        sent[part, :columns] = values[:, :columns]
        sent[part, columns:] = scales.view(torch.uint8)


def dequantise_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Such rows at their own size again."""
    (sent,), (out,) = reads, writes
    wide, columns = wide_dtype(out), slice(0, out.shape[1])
    for part in row_slices(len(out), 4 * out.shape[1] * wide.itemsize, at):
        out[part] = _of_rows(op, sent[part], columns, wide)


def _of_rows(op: Op, sent: torch.Tensor, those: slice, wide: torch.dtype) -> torch.Tensor:
    """Some columns at their own size of rows that bring their scales, (rows, columns)."""
    (fmt,), length = op.attributes["formats"], op.attributes["length"]
    columns = op.attributes["columns"]
    # A copy of its own: a view of a single row's would begin at any byte.
    scales = sent[:, columns:].clone(memory_format=torch.contiguous_format)
    if op.attributes["scaling"] == POWERS:
        sizes = powers(scales, wide)
    else:
        sizes = scales.view(torch.float32).to(wide)
    which = torch.arange(those.start, those.stop, device=sent.device) // length
    values = sent[:, those].contiguous().view(FORMATS[fmt]).to(wide)
    return values.mul_(sizes[:, which])


def write_blocks(
    op: Op, source: torch.Tensor, into: Tensors, block: Block, at: RankContext
) -> None:
    """The values and scales of a matrix in blocks; the last block of a row or column is shorter
    where it does not come out even. An op of rows that are `sent` reads these with their scales."""
    sent = op.attributes.get("sent", False)
    wide = (torch.float64 if op.dtype == "fp64" else torch.float32) if sent else wide_dtype(source)
    rows, columns = len(source), op.attributes["columns"] if sent else source.shape[1]
    height, width = block
    count = rows * columns
    source, values = source.contiguous(), into[0].view(-1)[:count].view(rows, columns)
    matrix = source if sent else source.view(-1)[:count].view(rows, columns)
    each, across = 4 * height * width * wide.itemsize, -(-columns // width)
    for strip in row_slices(-(-rows // height), each * across, at):
        own = slice(strip.start * height, min(strip.stop * height, rows))
        for part in row_slices(across, each * (strip.stop - strip.start), at):
            those = slice(part.start * width, min(part.stop * width, columns))
            some = _of_rows(op, matrix[own], those, wide) if sent else matrix[own, those].to(wide)
            cast, into[1][strip, part] = cast_in_blocks(op, some, block)
            values[own, those] = cast[: own.stop - own.start, : those.stop - those.start]


def cast_in_blocks(op: Op, part: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix, filled up to whole blocks, in 8 bits; and the scale of each block as it is kept."""
    (fmt,) = op.attributes["formats"]
    tiles = _tiles(part, *block)
    most = tiles.abs().amax((1, 3)).clamp_min_(LEAST)
    if op.attributes["scaling"] == POWERS:
        exponent = torch.frexp(most)[1] - 1 - LARGEST_EXPONENT[fmt]
        kept = (exponent.clamp_(-BIAS, BIAS) + BIAS).to(torch.uint8)
        scale = powers(kept, part.dtype)
    else:
        kept = (most / LARGEST[fmt]).to(torch.float32)
        scale = kept.to(part.dtype)
    return cast(tiles, scale[:, None, :, None], fmt).flatten(2).flatten(0, 1), kept


def cast(wide: torch.Tensor, scale: torch.Tensor, fmt: str) -> torch.Tensor:
    """Values over their scales in a format, as bytes. What is beyond its largest becomes that."""
    most = LARGEST[fmt]
    return (wide / scale).clamp_(-most, most).float().to(FORMATS[fmt]).view(torch.uint8)


def powers(exponents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Powers of two from their exponents in 8 bits."""
    return torch.ldexp(torch.ones_like(exponents, dtype=dtype), exponents.to(torch.int32) - BIAS)


def _tiles(part: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """A matrix as (tiles down, height, tiles across, width), zeros behind what does not fill."""
    rows, columns = part.shape
    if rows % height or columns % width:
        part = torch.nn.functional.pad(part, (0, -columns % width, 0, -rows % height))
    rows, columns = part.shape
    return part.reshape(rows // height, height, columns // width, width)
