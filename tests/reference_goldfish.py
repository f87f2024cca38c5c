"""Goldfish loss in plain Python numbers: which targets have no part in the loss.

It shares nothing with simgpt: the hash is written out from its description in
executor/kernels/goldfish.py, one target at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IGNORED = -100
WORD = 1 << 64


def without_dropped(targets: Tensor, k: int, h: int) -> Tensor:
    """The targets (batch, sequence), with IGNORED for each that the loss leaves out."""
    rows = [
        [IGNORED if is_dropped(row[max(i - h, 0) : i], k, h) else row[i] for i in range(len(row))]
        for row in targets.tolist()
    ]
    return torch.tensor(rows)


def is_dropped(before: Sequence[int], k: int, h: int) -> bool:
    """Whether a target is left out, from those before it, of which there may be too few."""
    return len(before) == h and hashed(before) * k < 1 << 53


def hashed(tokens: Sequence[int]) -> int:
    """A number of 53 bits."""
    c = 0
    for token in tokens:
        c = (c + token + 1) * 0x9E3779B97F4A7C15 % WORD
    c = (c ^ c >> 33) * 0xFF51AFD7ED558CCD % WORD
    c = (c ^ c >> 33) * 0xC4CEB9FE1A85EC53 % WORD
    return (c ^ c >> 33) >> 11
