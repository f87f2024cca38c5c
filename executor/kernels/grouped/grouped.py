"""Matmuls of many experts: plain ones, and those of operands in 8 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels import experts, quantised
from executor.kernels.grouped.places import places_of_experts
from executor.rank_context import RankContext
from workload.op import Op
from workload.recipes.table import WHOLE

Tensors = Sequence[torch.Tensor]
Part = tuple[Tensors, torch.Tensor]  # operands with scales, and what their product is written to


def grouped_matmul(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The matmul of each expert on its own rows, in the op's formats if it has any: products "NN"
    and "NT", or "TN" for the gradients of the weights.

    Operands are (rows of all experts, k) and the weights of all experts, (experts, k, n) or for
    "NT" (experts, n, k), flat, or for "TN" two of rows; then how many rows each expert gets from
    each rank, and scales of both operands. Zeros may follow the weights' tile, and follow that of
    their gradients.
    """
    if "formats" not in op.attributes:
        for operands, out in _whole(op, reads, writes[0]):
            _plain_product(op, operands, out)
        return
    by_blocks = WHOLE not in op.attributes["blocks"]
    parts = _by_blocks(op, reads, writes[0]) if by_blocks else _whole(op, reads, writes[0])
    for operands, out in parts:
        quantised.product(op, operands, out, at)


def _plain_product(op: Op, operands: Tensors, out: torch.Tensor) -> None:
    """One expert's product of rows and a flat weight, or of rows and rows."""
    first, second = operands
    if _of_weights(op):
        torch.mm(first.t(), second, out=out)
        return
    n, k = op.attributes["n"], op.attributes["k"]
    weight = second.view(n, k).t() if op.attributes["form"] == "NT" else second.view(k, n)
    torch.mm(first, weight, out=out)


def _whole(op: Op, reads: Tensors, out: torch.Tensor) -> Iterator[Part]:
    """Each expert's operands, with one scale each if there are any."""
    first, second, counts, *scales = reads
    tiles = _tiles(op, out if _of_weights(op) else second)
    for number, part in experts.parts_of(op, counts, len(first)):
        if _of_weights(op):
            yield (first[part], second[part], *scales), tiles[number]
        else:
            yield (first[part], tiles[number], *scales), out[part]


def _by_blocks(op: Op, reads: Tensors, out: torch.Tensor) -> Iterator[Part]:
    """Operands with scales of blocks, of which none has values of two experts."""
    first, second, counts, left, right = reads
    of_weights = _of_weights(op)
    tiles = _tiles(op, out if of_weights else second)
    lefts = _rows_of(op, 0, first, left, counts)
    if of_weights:
        rights = _rows_of(op, 1, second, right, counts)
        for tile, (one, scales), (other, of_other) in zip(tiles, lefts, rights, strict=True):
            yield (one, other, scales, of_other), tile
        return
    of_tiles, start = right.view(len(tiles), -1, right.shape[-1]), 0
    for tile, of_tile, (rows, scales) in zip(tiles, of_tiles, lefts, strict=True):
        yield (rows, tile, scales, of_tile), out[start : start + len(rows)]
        start += len(rows)


def _rows_of(
    op: Op, side: int, values: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each expert's rows of an operand, with their scales; summed over, with what fills them up."""
    height = op.attributes["blocks"][side][0]
    flat, every = values.view(-1, values.shape[-1]), scales.view(-1, scales.shape[-1])
    for place in places_of_experts(op, counts, height):
        yield flat[place.filled if _of_weights(op) else place.values], every[place.scales]


def _of_weights(op: Op) -> bool:
    return bool(op.attributes["form"] == "TN")


def _tiles(op: Op, tensor: torch.Tensor) -> torch.Tensor:
    """The matrices of all experts in a weight, or in its gradient, of which zeros behind them are
    zeroed anew."""
    n, local = op.attributes["n"], op.attributes["count"]
    other = op.attributes["m" if _of_weights(op) else "k"]
    flat = tensor.view(-1)
    if _of_weights(op):
        flat[local * other * n :].zero_()
        return flat[: local * other * n].view(local, other, n)
    return flat[: local * other * n].view(local, other * n)
