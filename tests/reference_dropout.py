"""Dropout for the plain reference, written out from what executor/kernels/dropout.py documents.

Element i of a tensor of the whole batch, flattened, is dropped where the upper 53 bits of
mix(i * 0x9E3779B97F4A7C15 + salt) are below rate * 2^53. It shares nothing with simgpt.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn


def kept(shape: tuple[int, ...], rate: float, seed: int, step: int, place: str) -> Tensor:
    """Which elements of a whole tensor stay, as booleans of that shape."""
    digest = hashlib.sha256(f"{seed}/{step}/{place}".encode()).digest()
    salt = np.frombuffer(digest[:8], dtype="<u8")[0]
    with np.errstate(over="ignore"):
        x = np.arange(math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
    uniform = (x >> np.uint64(11)).astype(np.float64) / 2**53
    return torch.from_numpy(uniform >= rate).view(shape)


class Dropout(nn.Module):
    """Drops elements of the whole batch's tensor; `step` is set by the training loop."""

    def __init__(self, rate: float, place: str, seed: int = 0) -> None:
        super().__init__()
        self.rate, self.place, self.seed, self.step = rate, place, seed, 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.rate:
            return x
        mask = kept(tuple(x.shape), self.rate, self.seed, self.step, self.place)
        return x * mask.to(x.dtype) / (1 - self.rate)
