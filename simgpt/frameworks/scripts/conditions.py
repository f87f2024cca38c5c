"""Evaluate a script's tests: true, false or unknown.

An unset variable is empty, as in bash, and is remembered. Output of commands, arguments of the
script and contents of files are unknown, and so is everything that depends on them. Source: Bash
Reference Manual, 3.2.5.2 (Conditional Constructs) and 6.4 (Conditional Expressions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from simgpt.frameworks.scripts.sums import NoSumError
from simgpt.frameworks.scripts.tree import Part, Test, Word
from simgpt.frameworks.scripts.variables import MARK, NAME, Variables

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-gt": lambda left, right: left > right,
    "-lt": lambda left, right: left < right,
    "-ge": lambda left, right: left >= right,
    "-le": lambda left, right: left <= right,
}
_SAME = ("=", "==", "!=")
_ORDER = ("<", ">")
_OTHERS = (*_ORDER, "=~", "-nt", "-ot", "-ef")
_UNARY = re.compile(r"-[a-zA-Z]")


class _Untold(Exception):
    """A value is not known."""


def negated(told: bool | None) -> bool | None:
    """The negation; unknown stays unknown."""
    return None if told is None else not told


def both(left: bool | None, right: bool | None) -> bool | None:
    """Whether both hold; a false one decides, even beside an unknown one."""
    return False if False in (left, right) else None if None in (left, right) else True


def either(left: bool | None, right: bool | None) -> bool | None:
    """Whether one of them holds."""
    return negated(both(negated(left), negated(right)))


@dataclass
class Conditions:
    """What tests say with these variables; `unset` are those that nobody sets and on which they
    depend."""

    variables: Variables
    unset: dict[str, None] = field(default_factory=dict)

    def test(self, test: Test) -> bool | None:
        """What `[[ … ]]` says."""
        return _Told(self, [(self.variables.text(word), word) for word in test.words]).all()

    def words(self, words: Sequence[Word]) -> bool | None:
        """What `[ … ]` or `test` says, whose words are split."""
        fields: list[tuple[str, Word | None]] = []
        incomplete = False
        for word in words:
            quoted = any(part.quoted for part in word)
            for text in self.variables.fields(word):
                mark = MARK.fullmatch(text)
                if mark and not quoted and NAME.fullmatch(mark[1]):
                    self.unset[mark[1]] = None
                    incomplete = True  # it leaves no word, and `[ == 1 ]` does not hold
                else:
                    fields.append((text, None))
        told = _Told(self, fields).all()
        return False if told is None and incomplete else told

    def matches(self, text: str, pattern: Word) -> bool | None:
        """Whether a text matches a pattern."""
        found = self.variables.pattern(pattern)
        if found is None:
            return None
        try:
            text, found = self.known(text), self.known(found)
        except _Untold:
            return None
        if self.variables.ignores_case:
            text, found = text.lower(), found.lower()
        return fnmatchcase(text, found)

    def sum(self, text: str) -> bool | None:
        """Whether a sum is not zero."""
        try:
            return self.variables.number(text, self._number_of) != 0
        except (NoSumError, _Untold):
            return None

    def known(self, text: str) -> str:
        """A text in which variables that nobody sets are empty."""
        return MARK.sub(lambda found: self._empty(found[1]), text)

    def number(self, text: str, *, is_sum: bool) -> int:
        """A number that is compared; of `[[ ]]` it may be a sum."""
        text = self.known(text).strip()
        if is_sum:
            return self.variables.number(text or "0", self._number_of)
        if not re.fullmatch(r"[-+]?\d{1,18}", text):
            raise NoSumError
        return int(text)

    def _number_of(self, name: str) -> int:
        self._empty(name)
        return 0

    def _empty(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise _Untold
        self.unset[name] = None
        return ""


@dataclass
class _Told:
    """The tokens of a test: texts, with their words where what is quoted counts."""

    conditions: Conditions
    tokens: Sequence[tuple[str, Word | None]]
    at: int = 0

    def all(self) -> bool | None:
        """What all the tokens say together."""
        if not self.tokens:
            return False
        try:
            told = self._either()
        except RecursionError:  # of brackets, or of negations
            return None
        return told if self.at == len(self.tokens) else None

    def _sign(self, *signs: str, ahead: int = 0) -> str:
        """One of these operators, if it is ahead."""
        if self.at + ahead >= len(self.tokens):
            return ""
        text, word = self.tokens[self.at + ahead]
        plain = word is None or word == (Part("text", text),)
        return text if plain and text in signs else ""

    def _either(self) -> bool | None:
        told = self._both()
        while self._sign("||", "-o"):
            self.at += 1
            told = either(told, self._both())
        return told

    def _both(self) -> bool | None:
        told = self._one()
        while self._sign("&&", "-a"):
            self.at += 1
            told = both(told, self._one())
        return told

    def _one(self) -> bool | None:
        left = len(self.tokens) - self.at
        if left <= 0:
            return None
        compares = self._sign(*_SAME, *_NUMBERS, *_OTHERS, ahead=1)
        if not compares and left > 1 and self._sign("!"):
            self.at += 1
            return negated(self._one())
        if not compares and left > 1 and self._sign("("):
            self.at += 1
            told = self._either()
            closed = self._sign(")")
            self.at += 1
            return told if closed else None
        try:
            if compares and left > 2:
                self.at += 3
                return self._compared(self.at - 3, compares)
            text, _ = self.tokens[self.at]
            if left > 1 and _UNARY.fullmatch(text) and not self._sign("&&", "||", ")", ahead=1):
                self.at += 2
                return self._unary(text, self.tokens[self.at - 1][0])
            self.at += 1
            return bool(self.conditions.known(text))
        except (_Untold, NoSumError):
            return None

    def _unary(self, sign: str, text: str) -> bool | None:
        if sign in ("-n", "-z"):
            return bool(self.conditions.known(text)) == (sign == "-n")
        if sign == "-v" and NAME.fullmatch(text):
            is_set = text in self.conditions.variables.values
            self.conditions.unset |= {} if is_set else {text: None}
            return is_set
        return None

    def _compared(self, at: int, sign: str) -> bool | None:
        (left, word), (right, pattern) = self.tokens[at], self.tokens[at + 2]
        if sign in _NUMBERS:
            is_sum = word is not None
            sizes = (self.conditions.number(each, is_sum=is_sum) for each in (left, right))
            return _NUMBERS[sign](*sizes)
        if sign in _ORDER:
            one, other = (self.conditions.known(each) for each in (left, right))
            return one < other if sign == "<" else one > other
        if sign not in _SAME:
            return None
        if pattern is None:
            same: bool | None = self.conditions.known(left) == self.conditions.known(right)
        else:
            same = self.conditions.matches(left, pattern)
        return same if sign != "!=" else negated(same)
