"""Whole numbers of many plans at once, so that one lowering writes the programs of all of them.

A `Lanes` has one whole number for each plan and calculates as an int does. Where the plans agree on
a comparison, that is its answer; where they do not, they have different programs, and
`UnequalLanesError` says who is on which side. So whatever is lowered with lanes in place of a
plan's sizes is the very program that each plan has alone, op by op.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workload.sizes.arrays import Counts, Flags

Calculation = Callable[[Any, Any], Any]
NONE = -1
UNKNOWN = -1  # in place of some inputs: all bits are set, whichever others are known


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
    return _alike(values) if _are_alike(values) else Lanes(values)


def _are_alike(values: Counts) -> bool:
    if values.item(-1) != values.item(0):  # mostly so, and sooner known than by a look at all
        return False
    return bool(np.logical_and.reduce(values == values.item(0)))


def _alike(values: Counts) -> int:
    return int(values.item(0))


def agreed(answers: Flags) -> bool:
    """The answer that all plans give."""
    yes = int(answers.sum())
    if 0 < yes < len(answers):
        raise UnequalLanesError(answers)
    return yes > 0


def _calculated(
    calculation: Calculation, *, swapped: bool = False, neutral: int | None = None
) -> Any:
    """The operator of a calculation, which leaves lanes as they are where the other operand is
    `neutral`: sums begin with 0, products with 1. It looks for what the steps know before it
    calculates, since most sizes of a program come again."""

    def method(self: Lanes, other: Any) -> Any:
        kind, own, steps = type(other), self.number, self.steps
        if kind is int and other == neutral:
            return self
        found = None
        if steps is not None and kind is int:  # keys are those of `_key`
            key = (calculation, NONE, own, other) if swapped else (calculation, own, NONE, other)
            found = steps.known.get(key)
        elif steps is not None and kind is Lanes and other.steps is steps:
            found = steps.known.get((calculation, own, other.number, NONE))
        if found is not None:
            return found
        if not isinstance(other, int | Lanes):
            return NotImplemented
        one, two = (other, self) if swapped else (self, other)
        if steps is None:
            return lanes(calculation(_values(one), _values(two)))
        return steps.calculated(calculation, one, two)

    return method


def _compared(comparison: Calculation) -> Any:
    def method(self: Lanes, other: Any) -> Any:
        if not isinstance(other, int | Lanes):
            return NotImplemented
        if self.steps is None:
            return agreed(comparison(self.values, _values(other)))
        return self.steps.compared(comparison, self, other)

    return method


class Lanes:
    """See above. Made by `lanes`, or by the `LaneSteps` that it is an outcome of.

    `number` tells it from all others of its steps, and `inputs` has a bit for each of their inputs
    that its values may depend on; both are negative where that is not known.
    """

    __slots__ = ("inputs", "number", "steps", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        values: Counts,
        number: int = NONE,
        inputs: int = UNKNOWN,
        steps: LaneSteps | None = None,
    ) -> None:
        self.values, self.number, self.inputs, self.steps = values, number, inputs, steps

    def only(self, keep: Flags) -> Any:
        """The numbers of some of the plans; a plain int where they are all equal."""
        values = self.values[keep]
        return _alike(values) if _are_alike(values) else Lanes(values, self.number, self.inputs)

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
        return bool(self != 0)

    def __rtruediv__(self, other: float) -> float:
        """A share is written into attributes that weigh and take no time: any plan's will do."""
        return float(other / self.values[0])

    def __repr__(self) -> str:
        return f"Lanes({self.values.tolist()})"


class LaneSteps:
    """The steps from some inputs to all lanes calculated from them, each taken once: a program has
    the same sizes in every layer, pass and micro-batch. Equal lanes are one.

    >>> steps = LaneSteps()
    >>> a, b = (steps.input(np.array(column)) for column in ([2, 4], [3, 5]))
    >>> 2 * a * b is 2 * a * b, (a + b).inputs, (a + 9).inputs
    (True, 3, 1)
    """

    def __init__(self) -> None:
        self._inputs = 0
        self.known: dict[tuple[Calculation, int, int, int], Any] = {}
        self._answers: dict[tuple[Calculation, int, int, int], bool] = {}
        self._equal: dict[bytes, Lanes] = {}

    def input(self, values: Counts) -> Any:
        """One of the numbers that all others follow from, as lanes."""
        own = 1 << self._inputs
        self._inputs += 1
        return self._lanes(values, own)

    def calculated(self, calculation: Calculation, one: Any, other: Any) -> Any:
        """The outcome of a calculation, one operand of which may be a plain number."""
        key = _key(calculation, one, other)
        found = self.known.get(key)
        if found is None:
            values = calculation(_values(one), _values(other))
            found = self.known[key] = self._lanes(values, inputs_of(one, other))
        return found

    def compared(self, comparison: Calculation, one: Any, other: Any) -> bool:
        """The answer that all plans give to a comparison."""
        key = _key(comparison, one, other)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = agreed(comparison(_values(one), _values(other)))
        return answer

    def _lanes(self, values: Counts, inputs: int) -> Any:
        if _are_alike(values):
            return _alike(values)
        mark = values.tobytes()
        found = self._equal.get(mark)
        if found is None:
            values.flags.writeable = False
            found = self._equal[mark] = Lanes(values, len(self._equal), inputs, self)
        return found

    def close(self) -> None:
        """Forget what only further steps would want, which then are not kept either."""
        for each in self._equal.values():
            each.steps = None
        for known in (self.known, self._answers, self._equal):
            known.clear()


class SharedSteps:
    """The steps from the inputs that were asked for last: programs of the same sizes share them, if
    they are lowered one behind the other.

    >>> shared, columns = SharedSteps(), [np.array([2, 4]), np.array([3, 5])]
    >>> shared.inputs(columns)[0] is shared.inputs(columns)[0]
    True
    """

    def __init__(self) -> None:
        self._mark, self._inputs, self.steps = b"", list[Any](), LaneSteps()

    def inputs(self, columns: Sequence[Counts]) -> list[Any]:
        """The columns as lanes."""
        mark = b"".join(column.tobytes() for column in columns)
        if mark != self._mark or not self._inputs:
            self.steps.close()
            self._mark, self.steps = mark, LaneSteps()
            self._inputs = [self.steps.input(column) for column in columns]
        return self._inputs


def _key(calculation: Calculation, one: Any, other: Any) -> tuple[Calculation, int, int, int]:
    if type(other) is not Lanes:
        return calculation, one.number, NONE, other
    if type(one) is not Lanes:
        return calculation, NONE, other.number, one
    assert one.steps is other.steps, "lanes of other steps have other numbers"
    return calculation, one.number, other.number, NONE


def inputs_of(*numbers: Any) -> int:
    """The inputs from which some lanes or plain numbers follow, or UNKNOWN."""
    found = 0
    for number in numbers:
        if type(number) is Lanes:
            found |= number.inputs
    return found


def first_of(value: Any) -> Any:
    """A value, or a tuple of them, as those of the first plan.

    >>> first_of((2, Lanes(np.array([3, 4]))))
    (2, 3)
    """
    if isinstance(value, tuple):
        return tuple(map(first_of, value))
    return int(value.values[0]) if isinstance(value, Lanes) else value


def numbers_in(value: Any) -> tuple[Any, ...]:
    """A value, or those of a tuple."""
    return value if type(value) is tuple else (value,)


def has_lanes(value: Any) -> bool:
    """Whether a value, or one of a tuple, is lanes."""
    return any(type(each) is Lanes for each in numbers_in(value))


def _values(number: Any) -> Any:
    return number.values if type(number) is Lanes else number
