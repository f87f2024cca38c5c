"""Whole numbers of many plans at once, so that one lowering writes the programs of all of them.

A `Lanes` has one whole number for each plan and calculates as an int does. Where the plans agree on
a comparison, that is its answer; where they do not, they have different programs, and
`UnequalLanesError` says who is on which side. So whatever is lowered with lanes in place of a
plan's sizes is the very program that each plan has alone, op by op.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workload.sizes.arrays import Counts, Flags
from workload.sizes.int_like import Calculation, IntLike


class UnequalLanesError(Exception):
    """Plans differ in what they ask: `aside` has those that answer yes."""

    def __init__(self, aside: Flags) -> None:
        super().__init__(f"{int(aside.sum())} of {len(aside)} plans have another program")
        self.aside = aside


def lanes(values: Counts) -> Any:
    """The numbers as lanes; a plain int where all are the same, so that most work stays cheap.

    >>> lanes(np.array([4, 8])) // 2 + 1
    Lanes([3, 5])
    >>> lanes(np.array([4, 8])) // lanes(np.array([2, 4]))
    2
    """
    first = values.item(0)
    if values.item(-1) != first:  # mostly so, and sooner known than by a look at all of them
        return Lanes(values)
    return first if np.logical_and.reduce(values == first) else Lanes(values)


def agreed(answers: Flags) -> bool:
    """The answer that all plans give."""
    yes = int(answers.sum())
    if 0 < yes < len(answers):
        raise UnequalLanesError(answers)
    return yes > 0


class Lanes(IntLike):
    """See above. Made by `lanes`."""

    __slots__ = ("values",)

    def __init__(self, values: Counts) -> None:
        self.values = values

    def calculated(self, calculation: Calculation, one: Any, other: Any) -> Any:
        """See `IntLike`."""
        return lanes(calculation(_values(one), _values(other)))

    def compared(self, comparison: Calculation, one: Any, other: Any) -> bool:
        """See `IntLike`."""
        return agreed(comparison(_values(one), _values(other)))

    def __rtruediv__(self, other: float) -> float:
        """A share is written into attributes that weigh and take no time: any plan's will do."""
        return float(other / self.values[0])

    def __repr__(self) -> str:
        return f"Lanes({self.values.tolist()})"


def _values(number: Any) -> Any:
    return number.values if type(number) is Lanes else number
