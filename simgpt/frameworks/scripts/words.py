"""Words of a bash script: texts, quotes, and expansions that are kept as they stand.

Source: Bash Reference Manual, 3.1.2 (Quoting).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simgpt.frameworks.scripts.tree import Part, Word

BEGINS, ENDS = "\ue000", "\ue001"  # of what is not known (variables.py); letters of nobody's
_MARKED = f"{BEGINS}[^{ENDS}]*{ENDS}"
_PLAIN = re.compile(rf"(?:{_MARKED}|[^\s;&|()<>'\"\\$`])+")
_IN_QUOTES = re.compile(rf"(?:{_MARKED}|[^\"\\$`])+")
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\s|;&()]*>")  # as templates have them for a value
_ANSI = {"n": "\n", "t": "\t"}
_CLOSERS = {"(": ")", "{": "}", "[": "]"}
_SPECIAL = {
    opens: re.compile(rf"[\\'\"# \n{re.escape(opens + closes)}]")
    for opens, closes in _CLOSERS.items()
}
_IN_STRING = re.compile(r"[\"\\]|\$[({]")


class BashError(Exception):
    """The text is no bash from some place on."""


def quoted_word(text: str) -> Word:
    """A text as if it stood in double quotes; what is no bash stands for itself."""
    try:
        return Words(text).string(to_end=True)
    except (BashError, RecursionError):
        return (Part("text", text, quoted=True),)


def plain_word(text: str) -> Word:
    """A text as one word, blanks included, whose quotes are read; what is no bash stands for
    itself."""
    try:
        return Words(text).word(blanks=True)
    except (BashError, RecursionError):
        return (Part("text", text, quoted=True),)


@dataclass
class Words:
    """A text, and the place up to which it is read. Its methods raise a BashError where a quote or
    a bracket has no end."""

    text: str
    at: int = 0

    def word(self, *, blanks: bool = False) -> Word:
        """The word ahead, nothing where there is none; with `blanks` all of the text."""
        parts: list[Part] = []
        while self.at < len(self.text):
            letter, rest = self.text[self.at], self.text[self.at + 1 : self.at + 2]
            if found := _PLAIN.match(self.text, self.at):
                parts.append(Part("text", found[0]))
                self.at = found.end()
            elif letter == "'":
                parts.append(Part("text", self._between("'"), quoted=True))
            elif letter == '"':
                self.at += 1
                parts += self.string() or (Part("text", "", quoted=True),)
            elif letter == "\\":
                if rest != "\n":
                    parts.append(Part("text", rest, quoted=True))
                self.at += 2
            elif letter == "$" and rest == "'":
                self.at += 1
                inner = re.sub(r"\\(.)", _unescaped, self._between("'"))
                parts.append(Part("text", inner, quoted=True))
            elif letter == "$":
                self.at += rest == '"'
                if rest != '"':
                    parts.append(self._expansion(quoted=False))
            elif letter == "`":
                parts.append(Part("command", self._between("`")))
            elif letter in "<>" and rest == "(":
                parts.append(Part("command", self._bracket(self.at + 1)))
            elif letter == "(" and parts and parts[-1].text[-1:] in tuple("?*+@!"):
                inner = self._bracket(self.at)
                parts.append(Part("text", f"({inner})"))
            elif found := PLACEHOLDER.match(self.text, self.at):
                parts.append(Part("text", found[0], quoted=True))
                self.at = found.end()
            elif blanks:
                parts.append(Part("text", letter, quoted=True))
                self.at += 1
            else:
                break
        return tuple(parts)

    def string(self, *, to_end: bool = False) -> Word:
        """What stands in double quotes, up to the closing one."""
        parts: list[Part] = []
        while self.at < len(self.text):
            letter, rest = self.text[self.at], self.text[self.at + 1 : self.at + 2]
            if letter == '"' and not to_end:
                self.at += 1
                return tuple(parts)
            if found := _IN_QUOTES.match(self.text, self.at):
                parts.append(Part("text", found[0], quoted=True))
                self.at = found.end()
            elif letter == "\\":
                escaped = "" if rest == "\n" else rest if rest in '"\\$`' else f"\\{rest}"
                parts.append(Part("text", escaped, quoted=True))
                self.at += 2
            elif letter == "$":
                parts.append(self._expansion(quoted=True))
            elif letter == "`":
                parts.append(Part("command", self._between("`"), quoted=True))
            else:
                parts.append(Part("text", letter, quoted=True))
                self.at += 1
        if to_end:
            return tuple(parts)
        raise BashError

    def _between(self, mark: str) -> str:
        """What stands between this mark and the next one."""
        end = self.text.find(mark, self.at + 1)
        while mark == "`" and end > 0 and self.text[end - 1] == "\\":
            end = self.text.find(mark, end + 1)
        if end < 0:
            raise BashError
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return inner

    def _expansion(self, *, quoted: bool) -> Part:
        """What a dollar stands before."""
        start = self.at
        if self.text.startswith("((", start + 1):
            inner = self._bracket(start + 1)
            if inner.endswith(")") and self._closing(start + 2, "(") == self.at - 2:
                return Part("sum", inner[1:-1], quoted)
            return Part("command", inner, quoted)
        if self.text.startswith("(", start + 1):
            return Part("command", self._bracket(start + 1), quoted)
        if self.text.startswith("[", start + 1):
            return Part("sum", self._bracket(start + 1), quoted)
        if self.text.startswith("{", start + 1):
            end = self._closing(start + 1, "{", quoted=quoted)
            self.at = end + 1
            return Part("variable", self.text[start + 2 : end], quoted)
        found = _NAME.match(self.text, start + 1)
        self.at = found.end() if found else start + 1
        return Part("variable", found[0], quoted) if found else Part("text", "$", quoted)

    def _bracket(self, at: int) -> str:
        """What stands in the bracket at a place."""
        end = self._closing(at, self.text[at])
        self.at = end + 1
        return self.text[at + 1 : end]

    def _closing(self, at: int, opens: str, *, quoted: bool = False) -> int:
        """Where the bracket at a place is closed."""
        closes, depth, special = _CLOSERS[opens], 0, _SPECIAL[opens]
        while found := special.search(self.text, at):
            at, letter = found.start(), found[0]
            if letter == "\\":
                at += 1
            elif letter == "'" and not quoted:
                at = self.text.find("'", at + 1)
                if at < 0:
                    break
            elif letter == '"':
                at = self._closing_quote(at + 1)
            elif letter == "#" and opens == "(" and self.text[at - 1] in " \t\n":
                at = self.text.find("\n", at)
                if at < 0:
                    break
            elif letter == opens and (opens != "{" or self.text[at - 1] == "$"):
                depth += 1
            elif letter == closes:
                depth -= 1
                if depth == 0:
                    return at
            at += 1
        raise BashError

    def _closing_quote(self, at: int) -> int:
        """Where a string in double quotes ends that begins before a place."""
        while found := _IN_STRING.search(self.text, at):
            at = found.start()
            if found[0] == '"':
                return at
            if found[0] == "\\":
                at += 2
            else:
                at = self._closing(at + 1, found[0][1], quoted=found[0][1] == "{") + 1
        raise BashError


def _unescaped(found: re.Match[str]) -> str:
    return _ANSI.get(found[1], found[1])
