"""Whole numbers of many plans at once, so that one lowering writes the programs of all of them.

A `Lanes` has one whole number for each plan and calculates as an int does. Where the plans agree on
a comparison, that is its answer; where they do not, they have different programs, and
`DivergedError` says who is on which side. So whatever is lowered with lanes in place of a plan's sizes is the very
program that each plan has alone, op by op.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class DivergedError(Exception):
    """Plans differ in what they ask: `aside` has those that answer yes."""

    def __init__(self, aside: Flags) -> None:
        super().__init__(f"{int(aside.sum())} of {len(aside)} plans have another program")
        self.aside = aside


def lanes(values: Ints) -> Any:
    """The numbers as lanes; a plain int where all are the same, so that most work stays cheap.

    >>> lanes(np.array([4, 8])) // 2 + 1
    Lanes([3, 5])
    >>> lanes(np.array([4, 8])) // lanes(np.array([2, 4]))
    2
    """
    first = int(values[0])
    return first if bool((values == first).all()) else Lanes(values)


def _calculated(operation: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
    def method(self: Lanes, other: object) -> Any:
        if isinstance(other, Lanes):
            value: Any = other.values
        elif isinstance(other, int):
            value = other
        else:
            return NotImplemented
        return lanes(operation(value, self.values) if swapped else operation(self.values, value))

    return method


def _compared(operation: Callable[[Any, Any], Any]) -> Any:
    def method(self: Lanes, other: object) -> bool:
        value = other.values if isinstance(other, Lanes) else other
        return agreed(operation(self.values, value))

    return method


def agreed(answers: Flags) -> bool:
    """The answer that all plans give."""
    yes = int(answers.sum())
    if 0 < yes < len(answers):
        raise DivergedError(answers)
    return yes > 0


class Lanes:
    """See above. Made by `lanes`."""

    __slots__ = ("values",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Ints) -> None:
        self.values = values

    __add__ = _calculated(operator.add)
    __radd__ = _calculated(operator.add, swapped=True)
    __sub__ = _calculated(operator.sub)
    __rsub__ = _calculated(operator.sub, swapped=True)
    __mul__ = _calculated(operator.mul)
    __rmul__ = _calculated(operator.mul, swapped=True)
    __floordiv__ = _calculated(operator.floordiv)
    __rfloordiv__ = _calculated(operator.floordiv, swapped=True)
    __mod__ = _calculated(operator.mod)
    __rmod__ = _calculated(operator.mod, swapped=True)

    __eq__ = _compared(operator.eq)
    __ne__ = _compared(operator.ne)
    __lt__ = _compared(operator.lt)
    __le__ = _compared(operator.le)
    __gt__ = _compared(operator.gt)
    __ge__ = _compared(operator.ge)

    def __neg__(self) -> Any:
        return lanes(-self.values)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __bool__(self) -> bool:
        return agreed(self.values != 0)

    def __rtruediv__(self, other: float) -> float:
        """A share is written into attributes that weigh and take no time: any plan's will do."""
        return float(other / self.values[0])

    def __repr__(self) -> str:
        return f"Lanes({self.values.tolist()})"
