"""What the plain reference needs beyond GPT-2's parts, written out from the papers.

RoPE (Su et al., 2104.09864) in the "rotate half" form of Llama's checkpoints for Hugging Face,
ALiBi (Press et al., 2108.12409), RMSNorm (Zhang and Sennrich, 1910.07467), SwiGLU (Shazeer,
2002.05202) and grouped queries (Ainslie et al., 2305.13245). It shares nothing with simgpt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean of x^2 + eps) * w over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.w = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.w


@dataclass(frozen=True)
class Scaling:
    """How RoPE's rates are scaled: "linear", "llama3" or "yarn", with the numbers of each."""

    kind: str
    factor: float
    original: float = 0.0
    low: float = 1.0
    high: float = 4.0
    all_dim: float = 0.0

    def rate(self, plain: float, pair: int, width: int, base: float) -> float:
        """The rate of a pair, case by case: as the released code of Llama 3.1 does it, and as
        YaRN's does with 32 turns and 1."""
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            wave = 2 * math.pi / plain
            if wave < self.original / self.high:
                return plain
            if wave > self.original / self.low:
                return plain / self.factor
            smooth = (self.original / wave - self.low) / (self.high - self.low)
            return (1 - smooth) * plain / self.factor + smooth * plain
        ends = [
            width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (32, 1)
        ]
        first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), width - 1)
        ramp = min(max((pair - first) / (last - first or 0.001), 0.0), 1.0)
        return plain / self.factor * ramp + plain * (1 - ramp)

    @property
    def size(self) -> float:
        """What queries and keys are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" else 1.0

    @property
    def of_scores(self) -> float:
        """What DeepSeek's released code multiplies the softmax's scale by."""
        return (0.1 * self.all_dim * math.log(self.factor) + 1) ** 2


def rotated(x: Tensor, base: float, scaling: Scaling | None = None) -> Tensor:
    """Queries or keys (..., sequence, width), turned by their positions: x cos + half sin."""
    sequence, width = x.shape[-2:]
    plain = [base ** (-2 * i / width) for i in range(width // 2)]
    if scaling is not None:
        plain = [scaling.rate(rate, i, width, base) for i, rate in enumerate(plain)]
    rates = torch.tensor(plain, dtype=x.dtype)
    angles = torch.arange(sequence, dtype=x.dtype)[:, None] * torch.cat([rates, rates])
    half = torch.cat([-x[..., width // 2 :], x[..., : width // 2]], dim=-1)
    size = 1.0 if scaling is None else scaling.size
    return (x * angles.cos() + half * angles.sin()) * size


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


def clamped_swiglu(x: Tensor) -> Tensor:
    """gpt-oss' form, as its released code has it, of [gate | up]."""
    gate, up = x.chunk(2, dim=-1)
    gate, up = gate.clamp(min=None, max=7.0), up.clamp(min=-7.0, max=7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up of [gate | up]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up
