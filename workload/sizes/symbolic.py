"""Whole numbers that remember how they were calculated, so that one lowering serves many plans.

A `Formula` stands for an int and calculates as one does; its `Formulas` note each step. Wherever a
comparison, or a need for the very number, decides how a program is written, that is noted as a
condition. For other inputs all steps are calculated again: where the conditions hold as well, what
was written is the very program that those have, op by op, but for its numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workload.sizes.int_like import Calculation, IntLike

NONE = -1  # the place of a plain number
PLAIN = (int, str, float, bool)  # what most numbers and attributes are
Step = tuple[Calculation, int, int]
Condition = tuple[Calculation, int, int, bool]


class Formulas:
    """The steps from some inputs to all numbers calculated from them, and what was asked of them.

    >>> formulas = Formulas()
    >>> n = formulas.input(6)
    >>> half = n // 2 if n % 2 == 0 else n
    >>> formulas.values([10])[half.number], formulas.values([7])
    (5, None)
    """

    def __init__(self) -> None:
        self._inputs = 0
        self._values: list[int] = []
        self._steps: list[tuple[int, Step]] = []
        self._conditions: dict[Condition, None] = {}
        self._known: dict[Any, Formula] = {}

    def input(self, value: int) -> Any:
        """One of the numbers that all others follow from; inputs come before anything else."""
        assert len(self._values) == self._inputs, "inputs come first"
        self._inputs += 1
        return self._new(value)

    def step(self, calculation: Calculation, one: Any, other: Any) -> Any:
        """The outcome of a calculation, one operand of which may be a plain number."""
        if isinstance(one, int):
            key = calculation, NONE, other.number, one
        elif isinstance(other, int):
            key = calculation, one.number, NONE, other
        else:
            key = calculation, one.number, other.number, NONE
        found = self._known.get(key)
        if found is None:
            a, b = self._of(one), self._of(other)
            found = self._known[key] = self._new(calculation(a.value, b.value))
            self._steps.append((found.number, (calculation, a.number, b.number)))
        return found

    def condition(self, comparison: Calculation, one: Formula | int, other: Formula | int) -> bool:
        """The answer of a comparison, on which what is written depends from now on."""
        a, b = self._of(one), self._of(other)
        answer = bool(comparison(a.value, b.value))
        if a is not b:
            self._conditions[comparison, a.number, b.number, answer] = None
        return answer

    def values(self, inputs: Sequence[int]) -> list[int] | None:
        """All numbers for other inputs; nothing where these do not meet the conditions.

        Steps taken for the first inputs alone, behind a condition, may divide by zero for others.
        """
        values = [*inputs, *self._values[self._inputs :]]
        try:
            for number, (calculation, a, b) in self._steps:
                values[number] = calculation(values[a], values[b])
        except ZeroDivisionError:
            return None
        for comparison, a, b, answer in self._conditions:
            if comparison(values[a], values[b]) != answer:
                return None
        return values

    def place(self, number: Formula | int) -> int:
        """The place of a number among all numbers, also of one that is no formula."""
        return self._of(number).number

    def close(self) -> None:
        """Forget what only further steps would want."""
        self._known.clear()

    def _of(self, number: Formula | int) -> Formula:
        if isinstance(number, Formula):
            return number
        if number not in self._known:
            self._known[number] = self._new(number)
        return self._known[number]

    def _new(self, value: int) -> Formula:
        self._values.append(value)
        return Formula(self, len(self._values) - 1, value)


class Formula(IntLike):
    """See above; `number` is its place among all numbers of its `formulas`."""

    __slots__ = ("formulas", "number", "value")

    def __init__(self, formulas: Formulas, number: int, value: int) -> None:
        self.formulas, self.number, self.value = formulas, number, value

    def calculated(self, calculation: Calculation, one: Any, other: Any) -> Any:
        """See `IntLike`."""
        return self.formulas.step(calculation, one, other)

    def compared(self, comparison: Calculation, one: Any, other: Any) -> bool:
        """See `IntLike`."""
        return self.formulas.condition(comparison, one, other)

    def __index__(self) -> int:
        """The very number: what is written holds for no other."""
        self.formulas.condition(operator.eq, self, self.value)
        return self.value

    def __rtruediv__(self, other: float) -> Quotient:
        return Quotient(other, self)

    def __format__(self, how: str) -> str:
        return format(int(self), how)

    def __repr__(self) -> str:
        return f"Formula({self.value})"


@dataclass(frozen=True, slots=True)
class Quotient:
    """A fraction, with which nothing more is calculated."""

    above: float
    below: Formula


def evaluated(thing: Any, values: Sequence[int]) -> Any:
    """A formula's number, also within tuples and mappings; anything else as it is."""
    if isinstance(thing, Formula):
        return values[thing.number]
    if isinstance(thing, Quotient):
        return thing.above / values[thing.below.number]
    if isinstance(thing, tuple):
        return tuple(evaluated(each, values) for each in thing)
    if isinstance(thing, Mapping):
        return {key: evaluated(each, values) for key, each in thing.items()}
    return thing


def mark(thing: Any) -> Any:
    """What tells formulas apart: equal for things that are equal for all inputs."""
    if type(thing) in PLAIN:
        return thing
    if isinstance(thing, Formula):
        return "formula", thing.number
    if isinstance(thing, Quotient):
        return "quotient", thing.above, thing.below.number
    return tuple(map(mark, thing)) if isinstance(thing, tuple) else thing


def has_formulas(thing: Any) -> bool:
    """Whether there is any formula in it."""
    if isinstance(thing, tuple):
        return any(map(has_formulas, thing))
    if isinstance(thing, Mapping):
        return any(map(has_formulas, thing.values()))
    return isinstance(thing, Formula | Quotient)
