"""Batches near a given one that share more factors with the devices (1,920 in place of 1,953).

A batch that shares few factors with the devices leaves few plans: 1,953 sequences on 64 devices
have none with data parallelism of more than one. What counts is the greatest common divisor of a
batch and the devices times a power of two, which micro-batches divide in turn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NEAR = 0.05  # of a batch: no further off is another one proposed
POWERS = 2**20  # of micro-batches and their accumulation
FASTER = 0.1  # per token: by more than that are plans of a near batch that a search names
BETTER = 4  # times as many factors: less is not worth a search
MIB = 2**20


def divided(batch: int, devices: int) -> int:
    """The greatest common divisor of a batch and the devices times a power of two.

    >>> [divided(batch, 64) for batch in (1953, 1920, 2048)]
    [1, 128, 2048]
    """
    return math.gcd(batch, devices * POWERS)


def near_batches(batch: float, devices: int) -> list[int]:
    """The best divided whole batches within NEAR below and above one, the better one first; the
    nearest of those that are alike.

    >>> near_batches(1953.125, 64), near_batches(2048, 64), near_batches(3.5, 8)
    ([2048, 1920], [2048], [])
    """
    low, high = math.ceil(batch * (1 - NEAR)), math.floor(batch * (1 + NEAR))
    below = range(max(low, 1), math.floor(batch) + 1)
    above = range(math.ceil(batch), high + 1)
    found = {_best(each, batch, devices) for each in (below, above) if each}
    return sorted(found, key=lambda each: (-divided(each, devices), each))


def worth_a_search(batch: int, devices: int) -> list[int]:
    """Near batches, at most two, that devices divide so much better that plans may be faster.

    >>> worth_a_search(1953, 64), worth_a_search(1920, 64), worth_a_search(1000, 64)
    ([2048, 1920], [], [1024, 960])
    """
    if batch % devices == 0:
        return []
    least = BETTER * divided(batch, devices)
    return [each for each in near_batches(batch, devices) if divided(each, devices) >= least]


def _best(batches: Iterable[int], batch: float, devices: int) -> int:
    return max(batches, key=lambda each: (divided(each, devices), -abs(each - batch)))


def words_of(batches: Iterable[int], sequence: int) -> str:
    """Batches as `--batch-tokens` has them, and their sequences.

    >>> words_of([2048, 1920], 4096)
    '8Mi (2,048 sequences) or 7864320 (1,920)'
    """
    words: list[str] = []
    for batch in batches:
        tokens = batch * sequence
        given = f"{tokens // MIB}Mi" if tokens % MIB == 0 else str(tokens)
        unit = "" if words else " sequence" if batch == 1 else " sequences"
        words.append(f"{given} ({batch:,}{unit})")
    return " or ".join(words)
