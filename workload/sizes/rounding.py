"""Sizes in bytes times factors, rounded to whole numbers."""

from __future__ import annotations

from fractions import Fraction


def scaled(number: int, factor: float) -> int:
    """A whole number times a factor as it is written, rounded half up.

    >>> scaled(3, 2.33), scaled(10, 0.25)
    (7, 3)
    """
    share = Fraction(str(factor))
    return (number * 2 * share.numerator + share.denominator) // (2 * share.denominator)
