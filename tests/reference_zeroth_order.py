"""The plain GPT of `tests/reference.py` trained by rules that compare losses, one process, float64.

Directions are written out from what executor/kernels/updates/directions.py documents; this shares
nothing with simgpt.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tests.reference import GPT2, Batch, Family, ReferenceGPT, Weights

EPS, DECAY = 1e-3, 0.1


def number_of(text: str) -> int:
    """The first 8 bytes of a text's SHA-256."""
    return int(np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], dtype="<u8")[0])


def normal_numbers(direction: str, parameter: str, shape: tuple[int, ...]) -> Tensor:
    """What a whole parameter has along a direction."""
    with np.errstate(over="ignore"):
        x = np.arange(math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(number_of(f"{direction}/{parameter}"))
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
    bits = x >> np.uint64(11)
    a = (bits // np.uint64(2**26)).astype(np.float64)
    b = (bits % np.uint64(2**26)).astype(np.float64)
    z = np.sqrt(-2 * np.log((a + 1) / 2**27)) * np.cos(2 * np.pi * b / 2**26)
    return torch.from_numpy(z).view(shape)


def mezo(
    weights: Weights, batches: Sequence[Batch], *, heads: int, lr: float, family: Family = GPT2
) -> tuple[list[float], dict[str, Tensor]]:
    """The mean of both losses of each step, and the weights after the last one."""
    everyone = [torch.arange(len(batches[0][0]))]
    names = [[f"0/{step}"] for step in range(1, len(batches) + 1)]
    return _trained(weights, batches, names, everyone, heads=heads, lr=lr, family=family)


def fedkseed(
    weights: Weights,
    batches: Sequence[Batch],
    replicas: Sequence[Tensor],
    *,
    candidates: int,
    heads: int,
    lr: float,
    family: Family = GPT2,
) -> tuple[list[float], dict[str, Tensor]]:
    """The same with one of so many directions for each of the replicas, given by their numbers of
    sequences in a batch."""
    names = [
        [
            f"0/of {candidates}/{number_of(f'0/{step}/{replica}') % candidates}"
            for replica in range(len(replicas))
        ]
        for step in range(1, len(batches) + 1)
    ]
    return _trained(weights, batches, names, replicas, heads=heads, lr=lr, family=family)


def _trained(
    weights: Weights,
    batches: Sequence[Batch],
    directions: Sequence[Sequence[str]],
    replicas: Sequence[Tensor],
    *,
    heads: int,
    lr: float,
    family: Family,
) -> tuple[list[float], dict[str, Tensor]]:
    now = {name: weight.clone() for name, weight in weights.items()}
    losses = []
    for (tokens, targets), names in zip(batches, directions, strict=True):
        slopes, found = [], []
        for name, rows in zip(names, replicas, strict=True):
            along, against = (
                _loss(_moved(now, name, by), (tokens[rows], targets[rows]), heads, family)
                for by in (EPS, -EPS)
            )
            slopes.append((along - against) / (2 * EPS))
            found.append((along + against) / 2)
        losses.append(sum(found) / len(found))
        estimate = {
            key: torch.stack(
                [
                    slope * normal_numbers(name, key, tuple(weight.shape))
                    for slope, name in zip(slopes, names, strict=True)
                ]
            ).mean(0)
            for key, weight in now.items()
        }
        for key, weight in now.items():
            decay = DECAY if weight.ndim > 1 else 0.0
            now[key] = weight - lr * (estimate[key] + decay * weight)
    return losses, now


def _moved(weights: Mapping[str, Tensor], direction: str, by: float) -> Weights:
    return {
        name: weight + by * normal_numbers(direction, name, tuple(weight.shape))
        for name, weight in weights.items()
    }


def _loss(weights: Weights, batch: Batch, heads: int, family: Family) -> float:
    with torch.no_grad():
        return float(ReferenceGPT(weights, heads=heads, family=family).loss(*batch))
