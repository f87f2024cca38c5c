"""Casts into 4 bits for the plain model, by the rules of NVIDIA's paper (2509.25149).

It shares nothing with simgpt. A gradient's elements are rounded up where what they are beyond the
lower number, in steps, is more than a number from 0 to 1 that follows from seed, step, the weight's
name, the direction of the sum and the element's place in the whole batch's gradient.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

GRID = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
EVEN = torch.tensor([0, 2, 4, 6])  # whose last bit is 0
SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
TURN = torch.tensor(
    [[(-1.0) ** (i & j).bit_count() * SIGNS[j] / 4 for j in range(16)] for i in range(16)],
    dtype=torch.float64,
)


def uniform(rows: Tensor, columns: int, place: str, step: int, seed: int = 0) -> Tensor:
    """A number from 0 to 1 for each element of some rows of a tensor of so many columns."""
    digest = hashlib.sha256(f"{seed}/{step}/{place}".encode()).digest()
    salt = np.frombuffer(digest[:8], dtype="<u8")[0]
    numbers = rows[..., None] * columns + torch.arange(columns)
    with np.errstate(over="ignore"):
        x = numbers.numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
    return torch.from_numpy((x >> np.uint64(11)).astype(np.float64) / 2**53)


def in_four_bits(x: Tensor, draws: Tensor | None) -> Tensor:
    """The nearest numbers, of two as near the one with the even code; or those drawn."""
    size = x.abs().clamp(max=6.0).contiguous()
    lower = (torch.searchsorted(GRID, size, right=True) - 1).clamp(max=6)
    share = (size - GRID[lower]) / (GRID[lower + 1] - GRID[lower])
    up = share > 0.5 if draws is None else share > draws
    if draws is None:
        up |= (share == 0.5) & torch.isin(lower + 1, EVEN)
    return GRID[lower + up] * x.sign()


def eight_bits(x: Tensor) -> Tensor:
    """The nearest numbers of E4M3."""
    x = x.float().double()
    step = torch.ldexp(torch.ones_like(x), (torch.frexp(x)[1] - 1).clamp_min(-6) - 3)
    return ((x / step).round() * step).clamp(max=448.0)


def cast(
    x: Tensor, kind: str, axis: int, place: tuple[str, str], step: int, tokens: Tensor | None
) -> Tensor:
    """(tensors, rows, columns) as they are after a cast and back, summed along one of the last
    two; turned if they are operands of a weight's gradient. Rows are drawn for by the numbers of
    their `tokens`, or one behind the other; `place` is the weight's name and the expert's rows."""
    tensors, rows, columns = x.shape
    height, width = (16, 16) if kind == "weight" else (1, 16) if axis else (16, 1)
    if kind != "weight" and not axis:
        x = (TURN @ x.reshape(tensors, -1, 16, columns)).reshape(x.shape)
    whole = (x.abs().flatten(1).amax(1).float() / (6 * 448)).double()[:, None, None, None, None]
    tiles = x.reshape(tensors, rows // height, height, columns // width, width)
    scale = eight_bits(tiles.abs().amax((2, 4), keepdim=True) / 6 / whole) * whole
    shares = torch.where(scale > 0, tiles / scale, 0.0)
    draws = None
    if kind == "gradient":
        direction, (weight, expert) = "rows" if axis else "columns", place
        numbers = torch.arange(tensors * rows) if tokens is None else tokens
        draws = uniform(numbers, columns, f"{weight}.{direction}{expert}", step).view(tiles.shape)
    return (in_four_bits(shares, draws) * scale).reshape(x.shape)
