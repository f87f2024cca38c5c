"""Numbers of 4 bits (E2M1): the nearest one, or one drawn of the two beside a value.

E2M1 has 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives: steps of 0.5 below 2, of 1 below 4, of
2 above. A value between two of them is rounded up where what it is beyond the lower one, in steps,
is more than u, so that it is itself in the mean. Element i of a gradient has u = h(i) / 2^53, with
h and its salt from seed, step and place as dropout has them (`executor/kernels/dropout.py`), and i
its place in the gradient of the step's whole batch: every split draws the same.

Rows of an expert are those that its ranks exchanged, by sender and then by token, so they have no
place in the batch. Their salt has besides the number of the expert among all of the layer, and of
the first token of these ranks' in the step's batch; i is the element's place among the expert's
rows, filled up. So it does not matter which rank has the expert, or which part of its columns.
Sources: OCP Microscaling Formats (MX) v1.0, section 5.3.3; NVIDIA (2509.25149), section 4.3.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch

from executor.kernels.context.positions import positions, tokens_of_rank
from executor.kernels.hashing import BITS, STRIDE, signed, upper_bits
from executor.rank_context import RankContext
from workload.op import Op

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by their three bits
SIGN = 8  # the fourth bit


def nearest(x: torch.Tensor) -> torch.Tensor:
    """The codes of the nearest numbers, of two as near of the one with an even code."""
    size, step = _sizes(x)
    return _codes(size.div_(step).round_().mul_(step), x)


def drawn(x: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The codes of one of the two numbers beside each value, by numbers from 0 to 1."""
    size, step = _sizes(x)
    lower = size.div_(step).floor()
    lower.add_(size.sub_(lower).to(uniform.dtype) > uniform)
    return _codes(lower.mul_(step), x)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Two codes in a byte, the first in the lower bits, of an even number of them."""
    pairs = codes.reshape(-1, 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def unpacked(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers in the bytes of a matrix, (rows, twice as many columns)."""
    numbers = torch.tensor([*VALUES, *(-each for each in VALUES)], dtype=dtype)
    pairs = torch.stack((numbers.repeat(16), numbers.repeat_interleave(16)), -1)
    return pairs.to(stored.device)[stored.to(torch.int32)].flatten(-2)


def uniform(op: Op, rows: slice, direction: str, at: RankContext, expert: int = 0) -> torch.Tensor:
    """What decides how the elements of some rows of a gradient are rounded, of experts' rows those
    of one of this rank's; copies that lie in another direction are rounded by numbers of their
    own."""
    how = op.attributes
    text = f"{at.seed}/{at.step}/{how['place']}.{direction}"
    if "expert_axes" not in how:
        numbers = _rows(op, rows, at)
    else:
        text += f".{at.part(how['expert_axes']) * how['count'] + expert}.{_first_token(op, at)}"
        numbers = torch.arange(rows.start, rows.stop, device=at.device)
    salt = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    columns, width = _columns(op, at)
    places = numbers[:, None] * width + columns
    return upper_bits(places.mul_(signed(STRIDE)).add_(signed(salt))).double().mul_(2.0**-BITS)


def _sizes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.abs().clamp_(max=VALUES[-1])
    step = torch.full_like(size, 0.5)
    return size, step.masked_fill_(size >= 2, 1.0).masked_fill_(size >= 4, 2.0)


def _codes(size: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    numbers = torch.tensor(VALUES, dtype=size.dtype).to(size.device)
    codes = torch.bucketize(size, numbers, out_int32=True).clamp_(max=SIGN - 1)
    return codes.add_(signs.signbit(), alpha=SIGN).to(torch.uint8)


def _rows(op: Op, rows: slice, at: RankContext) -> torch.Tensor:
    """Where among the rows of the step's batch some rows of a micro-batch are, of which ranks of x
    may have parts."""
    how, (start, stop) = op.attributes, (rows.start, rows.stop)
    sequence, axes = int(how["sequence"]), how.get("row_axes", ())
    tokens, before = tokens_of_rank(sequence, at), at.part(axes) * how["rows"]
    sequences = how["rows"] * at.grid.size(*axes) // tokens
    first = at.first_sequence(op.micro_batch, sequences, op.part)
    own = torch.arange(before + start, before + stop, device=at.device)
    return (first + own // tokens) * sequence + positions(own, sequence, at)


def _first_token(op: Op, at: RankContext) -> int:
    """The first token in the step's batch of those that the first of the ranks has, with which this
    one exchanges experts' rows of a micro-batch."""
    how, grid = op.attributes, at.grid
    others = grid.dimensions(*how["expert_axes"], *how["gathered_axes"])
    first = replace(at, rank=at.rank - sum(at.index(axis) * grid.stride(axis) for axis in others))
    sequence, count = int(how["sequence"]), int(how["sequences"])
    tokens, parts = tokens_of_rank(sequence, at), how["row_axes"]
    before = first.part(parts) * (count * tokens // grid.size(*parts))
    own = torch.tensor([before % tokens])
    sequences = first.first_sequence(op.micro_batch, count, op.part) + before // tokens
    return sequences * sequence + int(positions(own, sequence, first)[0])


def _columns(op: Op, at: RankContext) -> tuple[torch.Tensor, int]:
    """Where a rank's columns of a gradient are in the whole, and how many that has. Each band is
    split by itself."""
    bands, axes = op.attributes["bands"], op.attributes["column_axes"]
    parts, start, found = at.grid.size(*axes), 0, list[torch.Tensor]()
    for band in bands:
        width = band // parts
        first = start + at.part(axes) * width
        found.append(torch.arange(first, first + width, device=at.device))
        start += band
    return torch.cat(found), start
