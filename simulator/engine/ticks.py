"""Simulated time: whole picoseconds, so that sums are exact and ties are ties.

A step of 10 s is 1e13 ticks, and int64 holds 106 days of them. Rounding an op to a picosecond moves
it by less than a millionth of the shortest kernel launch; in return, extrapolating a folded step
loses nothing, and "these two times are equal" needs no tolerance.
"""

from __future__ import annotations

TICKS_PER_S = 10**12


def to_ticks(seconds: float) -> int:
    """The nearest tick.

    >>> to_ticks(2.5e-6), to_ticks(1.6e-12)
    (2500000, 2)
    """
    return round(seconds * TICKS_PER_S)


def to_seconds(ticks: int) -> float:
    """Ticks as seconds, correctly rounded.

    >>> to_seconds(2_500_000)
    2.5e-06
    """
    return int(ticks) / TICKS_PER_S
