"""Casts into 8 bits and matmuls of what was cast, by quantising and dequantising; those of 4 bits
are in `four_bits`.

Values lie in real buffers of a byte each, their scales beside them, so bytes are those of a device
that multiplies in 8 bits. A matmul makes wide values of its operands again, a part at a time, and
multiplies these: products and sums are in fp32, of an fp64 plan in fp64. Those with scales of
blocks are in `blocks.py`. Sources of the rules: `workload/recipes/table.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from executor.kernels.eight_bits.blocks import FORMATS, LEAST, cast, powers, write_blocks
from executor.kernels.four_bits import casts as four_bits
from executor.kernels.grouped.places import places_of_experts
from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op
from workload.recipes.table import (
    DELAYED,
    E2M1,
    LARGEST,
    TWO_LEVELS,
    WHOLE,
    Block,
)

Tensors = Sequence[torch.Tensor]


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

    A delayed scale was made before; it is noted then how large the tensor's values were. Rows that
    were `sent` in 8 bits bring their scales.
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
                write_blocks(op, given, taken, block, at)


def _write_whole(
    source: torch.Tensor, writes: Tensors, fmt: str, scale: torch.Tensor, at: RankContext
) -> None:
    writes[1].copy_(scale)
    flat, values = source.reshape(-1), writes[0].view(-1)
    wide = wide_dtype(source)
    for part in row_slices(len(flat), 2 * wide.itemsize, at):
        values[part] = cast(flat[part].to(wide), scale.to(wide), fmt)


def _matrices(
    op: Op, source: torch.Tensor, into: Tensors, block: Block, counts: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, Tensors]]:
    """Each matrix that is cast by itself, with where its values and scales go: a whole tensor, or
    that of each expert. Rows of experts are filled up with zeros, and begin at a block's start."""
    columns, count = op.attributes["columns"], op.attributes.get("count", 1)
    if counts is None:
        given = source.shape[-1] if op.attributes.get("sent", False) else columns
        matrices, values = (
            each.reshape(-1)[: count * op.attributes["rows"] * width].view(count, -1, width)
            for each, width in ((source, given), (into[0], columns))
        )
        scales = into[1].view(count, -1, into[1].shape[-1])
        yield from ((matrices[at], (values[at], scales[at])) for at in range(count))
        return
    values, scales = into[0].view(-1, columns), into[1].view(-1, into[1].shape[-1])
    values.zero_()
    for place in places_of_experts(op, counts, block[0]):
        yield source[place.rows], (values[place.values], scales[place.scales])


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


@record
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


@record
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
        scales = powers(scales, dtype) if scales.dtype == torch.uint8 else scales.to(dtype)
        if values.shape[1] % width:
            columns = torch.arange(values.shape[1], device=values.device) // width
            return values.mul_(scales[:, columns])
        tiles = values.contiguous().view(len(values), -1, width).mul_(scales.unsqueeze(-1))
        return tiles.view(values.shape)
