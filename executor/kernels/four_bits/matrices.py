"""The matrices that are cast by themselves: a whole tensor, or of experts each its own.

Rows of an expert are filled up with zeros to whole blocks and begin at a multiple of the recipe's
`align` (`executor/kernels/grouped/places.py`), so that no block, and no 16 rows that are turned
together, have rows of two experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels.four_bits.hadamard import ROWS
from executor.kernels.grouped.places import places_of_experts
from executor.kernels.slices import row_slices
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op

Tensors = Sequence[torch.Tensor]
BYTES = 64  # what casting takes an element: 8 bytes a few times over


@record
class Target:
    """Where a matrix is written: a flat run of bytes with its values, and its scales."""

    values: torch.Tensor
    scales: torch.Tensor


def matrices(op: Op, source: torch.Tensor, counts: Tensors) -> Iterator[torch.Tensor]:
    """Each matrix of a tensor, whose rows are so many of each expert as `counts`, if given, say;
    without the zeros that may follow a weight's tile."""
    rows, columns = op.attributes["rows"], op.attributes["columns"]
    for own in counts:
        for place in places_of_experts(op, own, 1):
            yield source[place.rows]
    if not counts:
        count = op.attributes.get("count", 1)
        yield from source.reshape(-1)[: count * rows * columns].view(count, rows, columns)


def targets(op: Op, into: Tensors, counts: Tensors, height: int) -> Iterator[Target]:
    """Where each of these matrices is written, in blocks of so many rows; what fills experts' rows
    up is zero."""
    values, scales = into
    columns = op.attributes["columns"]
    for own in counts:
        lines, every = values.view(-1, columns // 2), scales.view(-1, scales.shape[-1])
        lines.zero_()
        every.zero_()
        for place in places_of_experts(op, own, height):
            yield Target(lines[place.filled].view(-1), every[place.scales])
    if not counts:
        count, size = op.attributes.get("count", 1), op.attributes["rows"] * columns // 2
        flat, of_each = values.view(-1), scales.view(count, -1, scales.shape[-1])
        for number in range(count):
            yield Target(flat[number * size : (number + 1) * size], of_each[number])


def strips(
    matrix: torch.Tensor, wide: torch.dtype, at: RankContext
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Parts of a matrix of whole blocks of 16 rows, the last of which is filled up with zeros."""
    rows, columns = matrix.shape
    for each in row_slices(-(-rows // ROWS), ROWS * columns * BYTES, at):
        part = slice(each.start * ROWS, each.stop * ROWS)
        found = matrix[part].to(wide)
        missing = part.stop - part.start - len(found)
        yield part, torch.nn.functional.pad(found, (0, 0, 0, missing)) if missing else found
