"""What calculates as an int does without being one: the operators, in terms of two methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

Calculation = Callable[[Any, Any], Any]


def _calculated(
    calculation: Calculation, *, swapped: bool = False, neutral: int | None = None
) -> Any:
    """The operator of a calculation, which leaves a number as it is where the other is `neutral`:
    sums begin with 0, products with 1."""

    def method(self: IntLike, other: object) -> Any:
        if type(other) is int and other == neutral:
            return self
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        one, two = (other, self) if swapped else (self, other)
        return self.calculated(calculation, one, two)

    return method


def _compared(comparison: Calculation) -> Any:
    def method(self: IntLike, other: object) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return self.compared(comparison, self, other)

    return method


class IntLike:
    """Whole numbers in place of a plan's sizes; each operand is one of them or an int."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def calculated(self, calculation: Calculation, one: Any, other: Any) -> Any:
        """The outcome of a calculation."""
        raise NotImplementedError

    def compared(self, comparison: Calculation, one: Any, other: Any) -> bool:
        """The answer of a comparison."""
        raise NotImplementedError

    __add__ = _calculated(operator.add, neutral=0)
    __radd__ = _calculated(operator.add, swapped=True, neutral=0)
    __sub__ = _calculated(operator.sub, neutral=0)
    __rsub__ = _calculated(operator.sub, swapped=True)
    __mul__ = _calculated(operator.mul, neutral=1)
    __rmul__ = _calculated(operator.mul, swapped=True, neutral=1)
    __floordiv__ = _calculated(operator.floordiv, neutral=1)
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
        return 0 - self

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __bool__(self) -> bool:
        return self.compared(operator.ne, self, 0)


_OPERANDS = (int, IntLike)
