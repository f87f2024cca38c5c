"""A permutation of many numbers of which any entry is worked out alone, with no table.

The numbers below `count` are encrypted with a Feistel network over the smallest even number of bits
that holds them; what leaves the range is encrypted again until it is back ("cycle walking"), which
is a permutation of the range, since encryption is one of all numbers of those bits. The bits are at
most two more than needed, so that on average fewer than four passes bring a number back. Sources:
Luby and Rackoff (1988); Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002).
"""

from __future__ import annotations

import hashlib

import numpy as np

from executor.data.tokens import Numbers

ROUNDS = 8
# Of MurmurHash3's 64-bit finaliser.
FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
SHIFT = np.uint64(33)


def shuffled(numbers: Numbers, count: int, key: str) -> Numbers:
    """Where a permutation of 0 to count - 1, one for each key, sends some of these numbers."""
    digest = hashlib.sha256(key.encode()).digest() + hashlib.sha256(f"{key}/".encode()).digest()
    keys = np.frombuffer(digest, "<u8")[:ROUNDS]
    half = np.uint64(max((max(count - 1, 1).bit_length() + 1) // 2, 1))
    found = numbers.astype(np.uint64)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        found[outside] = _encrypted(found[outside], half, keys)
        outside = found >= count
    return found.astype(np.int64)


def _encrypted(numbers: Numbers, half: np.uint64, keys: Numbers) -> Numbers:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(values: Numbers) -> Numbers:
    for factor in FACTORS:
        values = (values ^ (values >> SHIFT)) * factor
    last: Numbers = values ^ (values >> SHIFT)
    return last
