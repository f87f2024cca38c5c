"""Dropout that every plan does alike: whether an element is kept depends on its place alone.

Element i of a whole tensor (that of the step's batch, flattened, with its rows in the order of the
batch's sequences) is dropped where h(i) < rate * 2^53. With all arithmetic modulo 2^64, h(i) are
the upper 53 bits of mix(i * 0x9E3779B97F4A7C15 + salt), where mix is MurmurHash3's 64-bit
finaliser and salt the first 8 bytes, least significant first, of the SHA-256 of "seed/step/place".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import ceil

import torch

from executor.place import Place
from workload.op import Op

Tensors = Sequence[torch.Tensor]
STRIDE = 0x9E3779B97F4A7C15
FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
BITS = 53
SLICE = 1 << 22  # elements hashed at once


def dropout(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Zero what is dropped and scale the rest by 1 / (1 - rate); writes the mask too."""
    out, mask = writes
    mask.copy_(kept(op, mask.shape, at))
    torch.mul(reads[0], mask, out=out).mul_(scale_of(op))


def dropout_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """The gradient of what was kept, scaled likewise."""
    torch.mul(reads[0], reads[1], out=writes[0]).mul_(scale_of(op))


def scale_of(op: Op) -> float:
    """What makes up for the dropped elements."""
    return float(1 / (1 - op.attributes["rate"]))


def kept(op: Op, shape: Sequence[int], at: Place) -> torch.Tensor:
    """Which elements of this rank's part of a tensor are kept, as booleans.

    A slice at a time, since hashing takes 8 bytes an element a few times over.
    """
    text = f"{at.seed}/{at.step}/{op.attributes['place']}"
    salt = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    threshold = ceil(op.attributes["rate"] * 2**BITS)
    lines, columns = _places(op, shape, at)
    mask = torch.empty(len(lines), len(columns), dtype=torch.bool, device=at.device)
    height = max(SLICE // len(columns), 1)
    for part, starts in zip(torch.split(mask, height), torch.split(lines, height), strict=True):
        torch.ge(_hashed(starts[:, None] + columns, salt), threshold, out=part)
    return mask.view(*shape)


def _hashed(places: torch.Tensor, salt: int) -> torch.Tensor:
    mixed = places.mul_(_signed(STRIDE)).add_(_signed(salt))
    for factor in FACTORS:
        mixed.bitwise_xor_(_shifted(mixed, 33)).mul_(_signed(factor))
    return _shifted(mixed.bitwise_xor_(_shifted(mixed, 33)), 64 - BITS)


def _places(op: Op, shape: Sequence[int], at: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each line (all dimensions but the last) begins in the whole tensor; its columns.

    Scores are (sequences, heads, sequence, sequence) with heads over x; anything else is (rows,
    columns) with columns over y and perhaps rows over x.
    """
    if len(shape) == 4:
        count, heads, *square = shape
        first = at.first_sequence(op.attributes["micro_batch"], count)
        wholes = [1, at.grid.x * heads, *square]
        firsts = [first, at.index("x") * heads, 0, 0]
    else:
        rows, columns = shape
        first = at.first_sequence(op.attributes["micro_batch"], op.attributes["rows"])
        first += at.index("x") * rows if rows < op.attributes["rows"] else 0
        wholes = [1, at.grid.y * columns]
        firsts = [first, at.index("y") * columns]
    *steps, last = (
        torch.arange(start, start + length, device=at.device)
        for start, length in zip(firsts, shape, strict=True)
    )
    lines = torch.zeros(1, dtype=torch.int64, device=at.device)
    for whole, step in zip(wholes, steps, strict=False):
        lines = (lines[:, None] * whole + step).view(-1)
    return lines * wholes[-1], last


def _shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    """A logical shift to the right: torch's keeps the sign."""
    return (values >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
