"""Casts into E2M1 with scales of two levels, and such operands at their own size again.

A tensor's scale makes the largest of its values 6 x 448, and a block's, kept in E4M3, what that
leaves of the block's largest value 6. Two values lie in a byte. Both operands of a weight's
gradient are turned by a Hadamard transform first (`hadamard.py`), and gradients are rounded at
random (`rounding.py`). Source: NVIDIA (2509.25149), section 4 and appendix C.

Of experts each has matrices of its own, of a weight and of rows (`matrices.py`), with a tensor's
scale of its own. Source: NVIDIA Transformer Engine, GroupedLinear, whose `split_quantize` has a
quantizer for each expert's rows.
"""

from __future__ import annotations

import torch

from executor.kernels.four_bits import rounding
from executor.kernels.four_bits.hadamard import turned
from executor.kernels.four_bits.matrices import Target, Tensors, matrices, strips, targets
from executor.kernels.slices import wide_dtype
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op
from workload.recipes.table import E2M1, E4M3, GRADIENT, LARGEST, WEIGHT, Block


def largest(op: Op, reads: Tensors, into: torch.Tensor, at: RankContext) -> None:
    """The largest magnitude of each matrix, and that of the matrix turned, if it is asked for."""
    source, *counts = reads
    into.zero_()
    forms, wide = into.shape[-1], wide_dtype(source)
    for most, matrix in zip(into.view(-1, forms), matrices(op, source, counts), strict=True):
        for _, part in strips(matrix, wide, at):
            some = (part, turned(part)) if forms > 1 else (part,)
            found = torch.stack([each.abs().amax() for each in some])
            torch.maximum(most, found.to(into.dtype), out=most)


def quantise(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copies of each matrix in 4 bits with their scales, one for each way to share scales."""
    source, largest_values, *counts = reads
    for number, block in enumerate(op.attributes["blocks"]):
        into = writes[2 * number], writes[2 * number + 1]
        of_each = largest_values.view(-1, largest_values.shape[-1])
        own = matrices(op, source, counts), targets(op, into, counts, block[0]), of_each
        for expert, (matrix, target, most) in enumerate(zip(*own, strict=True)):
            _write(op, matrix, target, (block, _tensor_scale(most, block), expert), at)


def _write(
    op: Op,
    matrix: torch.Tensor,
    into: Target,
    how: tuple[Block, torch.Tensor, int],
    at: RankContext,
) -> None:
    """The copy of a matrix in blocks, by its tensor's scale, of one of the rank's experts if it has
    any."""
    ((height, width), scale_of_all, expert), kind = how, op.attributes["operand"]
    wide, columns = wide_dtype(matrix), matrix.shape[1]
    whole, turns = scale_of_all.to(wide), is_turned((height, width), kind)
    for rows, as_is in strips(matrix, wide, at):
        part = turned(as_is) if turns else as_is
        tiles = part.reshape(len(part) // height, height, columns // width, width)
        scale = tiles.abs().amax((1, 3)).div_(LARGEST[E2M1]).div_(whole).nan_to_num_(nan=0.0)
        stored = scale.clamp_(max=LARGEST[E4M3]).float().to(torch.float8_e4m3fn)
        into.scales[rows.start // height : rows.stop // height] = stored.view(torch.uint8)
        by = stored.to(wide).mul_(whole)[:, None, :, None]
        shares = torch.where(by > 0, tiles / by, torch.zeros_like(tiles)).view(part.shape)
        if kind == GRADIENT:
            draws = rounding.uniform(op, rows, _along((height, width)), at, expert)
            codes = rounding.drawn(shares, draws)
        else:
            codes = rounding.nearest(shares)
        own = slice(rows.start * columns // 2, rows.stop * columns // 2)
        into.values[own] = rounding.packed(codes)


def is_turned(block: Block, kind: str) -> bool:
    """Whether a copy is one of a gradient's sum over rows."""
    return block[1] == 1 and kind != WEIGHT


def _along(block: Block) -> str:
    return "columns" if block[1] == 1 else "rows"


def _tensor_scale(most: torch.Tensor, block: Block) -> torch.Tensor:
    """What the values of a whole tensor are divided by, from its largest, or its largest turned."""
    own = most[-1] if block[1] == 1 else most[0]
    return own / (LARGEST[E2M1] * LARGEST[E4M3])


def operands(
    op: Op, left: Tensors, right: Tensors, shape: tuple[int, int]
) -> tuple[Operand, Operand]:
    """What a matmul of a product of this shape multiplies, each from its values, its scales and its
    tensor's largest values; zeros may follow values."""
    (m, n), form = shape, op.attributes["form"]
    first, second = op.attributes["blocks"]
    k = 2 * left[0].numel() // m if form == "TN" else op.attributes["k"]
    a = _operand(left, (m, k), first, turned_round=form[0] == "T")
    return a, _operand(right, (n, k), second, turned_round=form[1] == "N")


def _operand(
    reads: Tensors, shape: tuple[int, int], block: Block, *, turned_round: bool
) -> Operand:
    stored, scales, most = reads
    rows, columns = shape[::-1] if turned_round else shape
    values = stored.view(-1)[: rows * columns // 2].view(rows, columns // 2)
    scale = _tensor_scale(most, block)
    return Operand(values, scales.view(torch.float8_e4m3fn), scale, block, turned_round)


@record
class Operand:
    """An operand in 4 bits as it is stored, (rows, columns / 2) bytes; `turned_round` if its
    columns are the rows of the product."""

    values: torch.Tensor
    scales: torch.Tensor
    scale: torch.Tensor
    block: Block
    turned_round: bool

    @property
    def summed(self) -> int:
        """How many values of a row are summed over."""
        return len(self.values) if self.turned_round else 2 * self.values.shape[1]

    def wide(self, part: slice, dtype: torch.dtype) -> torch.Tensor:
        """Some rows in their own size, (rows, sum)."""
        if not self.turned_round:
            return self._part(part, slice(0, 2 * self.values.shape[1]), dtype)
        return self._part(slice(0, len(self.values)), part, dtype).t()

    def _part(self, rows: slice, columns: slice, dtype: torch.dtype) -> torch.Tensor:
        """A part of what is stored; of a byte that it has half of, the other half is left out."""
        first, last = columns.start // 2, (columns.stop + 1) // 2
        found = rounding.unpacked(self.values[rows, first:last], dtype)
        found = found[:, columns.start - 2 * first : columns.stop - 2 * first]
        (height, width), device = self.block, found.device
        down = torch.arange(rows.start, rows.stop, device=device) // height
        scales = self.scales[down].to(dtype).mul_(self.scale.to(dtype))
        if width > 1:
            across = torch.arange(columns.start, columns.stop, device=device) // width
            return found.mul_(scales[:, across])
        return found.mul_(scales[:, columns])
