"""Matmuls of many experts: plain ones, and those of operands in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels import experts
from executor.kernels.eight_bits import quantised
from executor.kernels.grouped.places import places_of_experts
from executor.rank_context import RankContext
from workload.op import Op
from workload.recipes.table import WHOLE

Tensors = Sequence[torch.Tensor]
Pair = tuple[Tensors, Tensors]  # operands, each with its scales and, of 4 bits, largest values
Part = tuple[Pair, torch.Tensor]  # and what their product is written to


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


def _plain_product(op: Op, operands: Pair, out: torch.Tensor) -> None:
    """One expert's product of rows and a flat weight, or of rows and rows."""
    (first,), (second,) = operands
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
            pair = (first[part], *scales[:1]), (second[part], *scales[1:])
            yield pair, tiles[number]
        else:
            yield ((first[part], *scales[:1]), (tiles[number], *scales[1:])), out[part]


def _by_blocks(op: Op, reads: Tensors, out: torch.Tensor) -> Iterator[Part]:
    """Operands with scales of blocks, of which none has values of two experts."""
    (left, right), (counts,) = quantised.of_operands(op, reads)
    lefts = _rows_of(op, 0, left, counts)
    if _of_weights(op):
        rights = _rows_of(op, 1, right, counts)
        yield from zip(zip(lefts, rights, strict=True), _tiles(op, out), strict=True)
        return
    start = 0
    for rows, weight in zip(lefts, _weights_of(op, right), strict=True):
        stop = start + len(rows[0])
        yield (rows, weight), out[start:stop]
        start = stop


def _rows_of(op: Op, side: int, operand: Tensors, counts: torch.Tensor) -> Iterator[Tensors]:
    """Each expert's rows of an operand, with their scales; summed over, with what fills them up."""
    values, scales, *largest = operand
    height = op.attributes["blocks"][side][0]
    flat, every = values.view(-1, values.shape[-1]), scales.view(-1, scales.shape[-1])
    for number, place in enumerate(places_of_experts(op, counts, height)):
        own = place.filled if _of_weights(op) else place.values
        yield flat[own], every[place.scales], *(each[number] for each in largest)


def _weights_of(op: Op, operand: Tensors) -> Iterator[Tensors]:
    """Each expert's weight, with its scales."""
    values, scales, *largest = operand
    count = op.attributes["count"]
    size = op.attributes["k"] * op.attributes["n"] // (2 if largest else 1)
    tiles = values.view(-1)[: count * size].view(count, size)
    for number, of_tile in enumerate(scales.view(count, -1, scales.shape[-1])):
        yield tiles[number], of_tile, *(each[number] for each in largest)


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
