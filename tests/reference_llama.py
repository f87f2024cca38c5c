"""What the plain reference needs beyond GPT-2's parts, written out from the papers.

RoPE (Su et al., 2104.09864) in the "rotate half" form of Llama's checkpoints for Hugging Face,
ALiBi (Press et al., 2108.12409), RMSNorm (Zhang and Sennrich, 1910.07467), SwiGLU (Shazeer,
2002.05202) and grouped queries (Ainslie et al., 2305.13245). It shares nothing with simgpt.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean of x^2 + 1e-5) * w over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5) * self.w


def rotated(x: Tensor, base: float) -> Tensor:
    """Queries or keys (..., sequence, width), turned by their positions: x cos + half sin."""
    sequence, width = x.shape[-2:]
    rates = torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=x.dtype)
    angles = torch.arange(sequence, dtype=x.dtype)[:, None] * torch.cat([rates, rates])
    half = torch.cat([-x[..., width // 2 :], x[..., : width // 2]], dim=-1)
    return x * angles.cos() + half * angles.sin()


def slopes(heads: int) -> list[float]:
    """ALiBi's slope of each head, as the function `get_slopes` of the released code gives them."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return of_power(closest) + slopes(2 * closest)[0::2][: heads - closest]


def alibi(heads: int, sequence: int, dtype: torch.dtype) -> Tensor:
    """What each head adds to the scores: its slope times (key's position - query's position)."""
    positions = torch.arange(sequence, dtype=dtype)
    return torch.stack([slope * (positions - positions[:, None]) for slope in slopes(heads)])


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up of [gate | up]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up
