"""A hash of 64-bit numbers that every device and plan computes alike.

All arithmetic is modulo 2^64, on torch's signed integers.
"""

from __future__ import annotations

import torch

STRIDE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd
FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
BITS = 53


def upper_bits(values: torch.Tensor) -> torch.Tensor:
    """The upper 53 bits of MurmurHash3's 64-bit finaliser of each value, which is overwritten."""
    for factor in FACTORS:
        values.bitwise_xor_(_shifted(values, 33)).mul_(signed(factor))
    return _shifted(values.bitwise_xor_(_shifted(values, 33)), 64 - BITS)


def signed(value: int) -> int:
    """A number of 64 bits as torch's signed integers have it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    """A logical shift to the right: torch's keeps the sign."""
    return (values >> by).bitwise_and_((1 << (64 - by)) - 1)
