"""Casts into 8 bits and matmuls of what was cast, by quantising and dequantising; those of 4 bits
are in `four_bits`.

Values lie in real buffers of a byte each, their scales beside them, so bytes are those of a device
that multiplies in 8 bits. A matmul makes wide values of its operands again, a part at a time, and
multiplies these: products and sums are in fp32, of an fp64 plan in fp64. Scales are kept as what
values are multiplied by to have their size again; a power of two as its exponent, 127 more.

Sources of the rules: `workload/recipes/table.py`. What is beyond a format's largest value becomes
that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from executor.kernels.four_bits import casts as four_bits
from executor.kernels.grouped.places import places_of_experts
from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.op import Op
from workload.recipes.table import (
    DELAYED,
    E2M1,
    LARGEST,
    POWERS,
    TWO_LEVELS,
    WHOLE,
    Block,
)

Tensors = Sequence[torch.Tensor]
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST_EXPONENT = {"e4m3": 8}  # of what the format holds
BIAS = 127  # of an exponent in 8 bits
LEAST = 1e-12  # no scale is made from less


def amax(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The largest magnitude of a tensor, without a tensor of magnitudes."""
    if op.attributes.get("scaling") == TWO_LEVELS:
        four_bits.largest(op, reads, writes[0], at)
    else:
        writes[0].copy_(_largest(reads[0]))


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():  # rows that no token was routed to
        return torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    least, most = torch.aminmax(tensor)
    return torch.maximum(-least, most)


def quantise(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copies of a tensor in 8 bits with their scales, one for each way to share scales.

    A delayed scale was made before; it is noted then how large the tensor's values were.
    """
    how = op.attributes
    if how["scaling"] == TWO_LEVELS:
        four_bits.quantise(op, reads, writes, at)
        return
    source, (fmt,) = reads[0], how["formats"]
    if how["scaling"] == DELAYED:
        scale = 1 / reads[1][how["slot"]]
        scale = torch.where(torch.isfinite(scale), scale, torch.ones_like(scale))
        if len(reads) > 2:
            noted = writes[-1][how["slot"]]
            noted.copy_(torch.maximum(noted, _largest(source).to(noted.dtype)))
        _write_whole(source, writes, fmt, scale, at)
    elif how["blocks"] == (WHOLE,):
        _write_whole(source, writes, fmt, reads[1].clamp_min(LEAST) / LARGEST[fmt], at)
    else:
        counts = None if how.get("even", True) else reads[-1]
        for number, block in enumerate(how["blocks"]):
            into = writes[2 * number], writes[2 * number + 1]
            for given, taken in _matrices(op, source, into, block, counts):
                _write_blocks(op, given, taken, block, at)


def _write_whole(
    source: torch.Tensor, writes: Tensors, fmt: str, scale: torch.Tensor, at: RankContext
) -> None:
    writes[1].copy_(scale)
    flat, values = source.reshape(-1), writes[0].view(-1)
    wide = wide_dtype(source)
    for part in row_slices(len(flat), 2 * wide.itemsize, at):
        values[part] = _cast(flat[part].to(wide), scale.to(wide), fmt)


def _cast(wide: torch.Tensor, scale: torch.Tensor, fmt: str) -> torch.Tensor:
    """Values over their scales in a format, as bytes."""
    most = LARGEST[fmt]
    return (wide / scale).clamp_(-most, most).float().to(FORMATS[fmt]).view(torch.uint8)


def _matrices(
    op: Op, source: torch.Tensor, into: Tensors, block: Block, counts: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, Tensors]]:
    """Each matrix that is cast by itself, with where its values and scales go: a whole tensor, or
    that of each expert. Rows of experts are filled up with zeros, and begin at a block's start."""
    columns, count = op.attributes["columns"], op.attributes.get("count", 1)
    if counts is None:
        size = op.attributes["rows"] * columns
        each, scales = into[0].view(-1), into[1].view(count, -1, into[1].shape[-1])
        flat = source.reshape(-1)
        for number in range(count):
            own = slice(number * size, (number + 1) * size)
            yield flat[own].view(-1, columns), (each[own], scales[number])
        return
    values, scales = into[0].view(-1, columns), into[1].view(-1, into[1].shape[-1])
    values.zero_()
    for place in places_of_experts(op, counts, block[0]):
        yield source[place.rows], (values[place.values], scales[place.scales])


def _write_blocks(
    op: Op, source: torch.Tensor, into: Tensors, block: Block, at: RankContext
) -> None:
    """The values and scales of a matrix in blocks; the last block of a row or column is shorter
    where it does not come out even."""
    rows, columns = source.shape
    (fmt,), powers = op.attributes["formats"], op.attributes["scaling"] == POWERS
    height, width = block
    count, wide = rows * columns, wide_dtype(source)
    matrix, values = (
        each.view(-1)[:count].view(rows, columns) for each in (source.contiguous(), into[0])
    )
    each, across = 4 * height * width * wide.itemsize, -(-columns // width)
    for strip in row_slices(-(-rows // height), each * across, at):
        own = slice(strip.start * height, min(strip.stop * height, rows))
        for part in row_slices(across, each * (strip.stop - strip.start), at):
            those = slice(part.start * width, min(part.stop * width, columns))
            tiles = _tiles(matrix[own, those].to(wide), height, width)
            scale = tiles.abs().amax((1, 3)).clamp_min_(LEAST)
            if powers:
                exponent = torch.frexp(scale)[1] - 1 - LARGEST_EXPONENT[fmt]
                into[1][strip, part] = (exponent.clamp_(-BIAS, BIAS) + BIAS).to(torch.uint8)
                scale = _powers(into[1][strip, part], wide)
            else:
                into[1][strip, part] = scale / LARGEST[fmt]
                scale = into[1][strip, part].to(wide)
            cast = _cast(tiles, scale[:, None, :, None], fmt).flatten(2).flatten(0, 1)
            values[own, those] = cast[: own.stop - own.start, : those.stop - those.start]


def _tiles(part: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """A matrix as (tiles down, height, tiles across, width), zeros behind what does not fill."""
    rows, columns = part.shape
    if rows % height or columns % width:
        part = torch.nn.functional.pad(part, (0, -columns % width, 0, -rows % height))
    rows, columns = part.shape
    return part.reshape(rows // height, height, columns // width, width)


def _powers(exponents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Powers of two from their exponents in 8 bits."""
    return torch.ldexp(torch.ones_like(exponents, dtype=dtype), exponents.to(torch.int32) - BIAS)


def update_scales(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Scales for the next step from the largest values of this one and of those before it."""
    noted, history, scales = writes
    history.copy_(torch.cat((noted.unsqueeze(0), history[:-1])))
    most = history.amax(0)
    made, kinds = torch.empty_like(most), op.attributes["largest"]
    for place, largest in enumerate(kinds):
        made[place :: len(kinds)] = largest
    made.div_(most)  # a number over a tensor would be its reciprocal times that, rounded twice
    scales.copy_(torch.where(most > 0, made, scales))
    noted.zero_()


def matmul(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """C = A B (+ bias) of two operands in 8 bits; zeros may follow a weight's tile, and follow that
    of its gradient."""
    m, n = op.attributes["m"], op.attributes["n"]
    out = writes[0].view(-1)
    if len(out) > m * n:
        out[m * n :].zero_()
    tile = out[: m * n].view(m, n)
    both, bias = of_operands(op, reads)
    product(op, both, tile, at, *bias)


def of_operands(op: Op, reads: Tensors) -> tuple[tuple[Tensors, Tensors], Tensors]:
    """What an op reads of each of its operands: values, scales and, of 4 bits, largest values; and
    what it reads between the values and the scales."""
    count = 3 if E2M1 in op.attributes["formats"] else 2
    left, right, *between = reads[: len(reads) - 2 * (count - 1)]
    more = reads[len(reads) - 2 * (count - 1) :]
    return ((left, *more[::2]), (right, *more[1::2])), between


def product(
    op: Op,
    operands: tuple[Tensors, Tensors],
    out: torch.Tensor,
    at: RankContext,
    bias: torch.Tensor | None = None,
) -> None:
    """A matmul of what is given of two operands (`of_operands`), in the form that an op names; each
    has the rows or columns that `out` has."""
    m, n = out.shape
    if E2M1 in op.attributes["formats"]:
        _multiply(four_bits.operands(op, *operands, (m, n)), out, at, bias)
        return
    (left, left_scale), (right, right_scale) = operands
    form = op.attributes["form"]
    k = left.numel() // m if form == "TN" and m else op.attributes["k"]
    first, second = (_Stored(*each) for each in zip(
        op.attributes["blocks"], op.attributes["formats"], strict=True
    ))  # fmt: skip
    plain, turned = form[0] == "N", form[1] == "N"
    a = first.operand(left, left_scale, (m, k), turned=not plain)
    b = second.operand(right, right_scale, (n, k), turned=turned)
    _multiply((a, b), out, at, bias)


def _multiply(
    operands: tuple[Wide, Wide],
    out: torch.Tensor,
    at: RankContext,
    bias: torch.Tensor | None = None,
) -> None:
    """The product of two operands of (rows, sum), a part of each at a time."""
    (m, n), (a, b), wide = out.shape, operands, wide_dtype(out)
    k = a.summed
    shift = None if bias is None else bias.to(wide)
    # A part of each operand, and of the product twice.
    for columns in row_slices(n, 4 * k * wide.itemsize, at):
        some = b.wide(columns, wide)
        for rows in row_slices(m, (4 * k + 4 * len(some)) * wide.itemsize, at):
            part = a.wide(rows, wide) @ some.t()
            out[rows, columns] = part if shift is None else part.add_(shift[columns])


class Wide(Protocol):
    """An operand of which rows can be had at their own size."""

    @property
    def summed(self) -> int:
        """How many values of a row are summed over."""

    def wide(self, part: slice, dtype: torch.dtype) -> torch.Tensor:
        """Some rows in their own size, (rows, sum)."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """How an operand is stored: what shares a scale, and in which format."""

    block: Block
    fmt: str

    def operand(
        self, values: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int], *, turned: bool
    ) -> _Operand:
        """The operand of (rows, sum); `turned` if it is stored as (sum, rows)."""
        rows, columns = shape[::-1] if turned else shape
        matrix = values.reshape(-1)[: rows * columns].view(rows, columns).view(FORMATS[self.fmt])
        if not turned:
            return _Operand(matrix, scales, self.block)
        whole = self.block == WHOLE
        return _Operand(matrix.t(), scales if whole else scales.t(), self.block[::-1])


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand in 8 bits as a matrix whose rows are summed over; `block` are the rows and values
    of it that share a scale."""

    values: torch.Tensor
    scales: torch.Tensor
    block: Block

    @property
    def summed(self) -> int:
        """How many values of a row are summed over."""
        return self.values.shape[1]

    def wide(self, part: slice, dtype: torch.dtype) -> torch.Tensor:
        """Some rows in their own size, (rows, sum)."""
        values = self.values[part].to(dtype)
        if self.block == WHOLE:
            return values.mul_(self.scales.to(dtype))
        height, width = self.block
        rows = torch.arange(part.start, part.stop, device=values.device) // height
        scales = self.scales[rows]
        scales = _powers(scales, dtype) if scales.dtype == torch.uint8 else scales.to(dtype)
        if values.shape[1] % width:
            columns = torch.arange(values.shape[1], device=values.device) // width
            return values.mul_(scales[:, columns])
        tiles = values.contiguous().view(len(values), -1, width).mul_(scales.unsqueeze(-1))
        return tiles.view(values.shape)
