"""Sums of whole numbers as bash has them in `$((...))`. Each is worked out, never evaluated.

Source: Bash Reference Manual, 6.5 (Shell Arithmetic): the operators of C and `**`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simgpt.frameworks.reading import MOST

LONGEST_SUM = 500
MOST_SHIFT = 40  # 2**40 is about MOST
_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*(?:\[[^\]]*\])?"
    r"|\*\*|<<=?|>>=?|\+\+|--|&&|\|\||[-+*/%<>=!&|^]=|[-+*/%()<>!~&|^?:,=])"
)
_ASSIGNS = re.compile(r"(?:[-+*/%&|^]|<<|>>)?=")
_NAME = re.compile(r"[A-Za-z_].*", re.DOTALL)
_LEVELS = (  # from those that bind least
    *(("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">=")),
    *(("<<", ">>"), ("+", "-"), ("*", "/", "%")),
)


class NoSumError(Exception):
    """The text is not an arithmetic expression of known whole numbers."""


def _quotient(left: int, right: int) -> int:
    return (-1 if (left < 0) != (right < 0) else 1) * (abs(left) // abs(right))


def _power(left: int, right: int) -> int:
    if right < 0 or (abs(left) > 1 and right > MOST_SHIFT):
        raise NoSumError
    return int(left**right)


def _shifted(left: int, right: int) -> int:
    return left * _power(2, right)


_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "||": lambda left, right: int(bool(left or right)),
    "&&": lambda left, right: int(bool(left and right)),
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": lambda left, right: int(left == right),
    "!=": lambda left, right: int(left != right),
    "<": lambda left, right: int(left < right),
    ">": lambda left, right: int(left > right),
    "<=": lambda left, right: int(left <= right),
    ">=": lambda left, right: int(left >= right),
    "<<": _shifted,
    ">>": lambda left, right: left // _power(2, right),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
    "**": _power,
}
_UNARY: Mapping[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "!": lambda value: int(not value),
    "~": operator.invert,
}


@dataclass
class Sum:
    """A sum's text, with what reads its variables and what sets them. A NoSumError is raised where
    it has no value."""

    text: str
    read: Callable[[str], int]
    write: Callable[[str, int], None]

    def value(self) -> int:
        """What it comes to."""
        if len(self.text) > LONGEST_SUM:
            raise NoSumError
        self._tokens: list[str] = []
        at = 0
        text = self.text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found:
                raise NoSumError
            self._tokens.append(found[1])
            at = found.end()
        try:
            value = self._comma()
        except (ZeroDivisionError, RecursionError, ValueError):
            raise NoSumError from None
        if self._tokens:
            raise NoSumError
        return value

    def _takes(self, *tokens: str) -> str:
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in tokens else ""

    def _comma(self) -> int:
        value = self._assigned()
        while self._takes(","):
            value = self._assigned()
        return value

    def _assigned(self) -> int:
        if len(self._tokens) > 1 and _NAME.match(self._tokens[0]):
            name, sign = self._tokens[:2]
            if _ASSIGNS.fullmatch(sign):
                self._tokens = self._tokens[2:]
                value = self._assigned()
                value = _BINARY[sign[:-1]](self.read(name), value) if sign != "=" else value
                self.write(name, _checked(value))
                return value
        value = self._level(0)
        if not self._takes("?"):
            return value
        first = self._assigned()
        if not self._takes(":"):
            raise NoSumError
        second = self._assigned()
        return first if value else second

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        value = self._level(level + 1)
        while sign := self._takes(*_LEVELS[level]):
            value = _checked(_BINARY[sign](value, self._level(level + 1)))
        return value

    def _power(self) -> int:
        value = self._unary()
        return _checked(_power(value, self._power())) if self._takes("**") else value

    def _unary(self) -> int:
        if sign := self._takes("++", "--"):
            return self._counted(self._tokens.pop(0) if self._tokens else "", sign)
        if sign := self._takes(*_UNARY):
            return _UNARY[sign](self._unary())
        if self._takes("("):
            value = self._comma()
            if not self._takes(")"):
                raise NoSumError
            return value
        if not self._tokens:
            raise NoSumError
        token = self._tokens.pop(0)
        if _NAME.fullmatch(token):
            value = self.read(token)
            if sign := self._takes("++", "--"):
                self._counted(token, sign)
            return value
        base, based, digits = token.partition("#")
        if not based:
            base, digits = ("8" if token[0] == "0" and token.isdecimal() else "0"), token
        return _checked(int(digits, int(base)))

    def _counted(self, name: str, sign: str) -> int:
        if not _NAME.fullmatch(name):
            raise NoSumError
        value = self.read(name) + (1 if sign == "++" else -1)
        self.write(name, _checked(value))
        return value


def _checked(value: int) -> int:
    if abs(value) > MOST:
        raise NoSumError
    return value
