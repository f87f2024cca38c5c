"""A shell script's statements: its lines without comments and here-documents, continued ones
joined, several of a line apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HERE = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_CLOSES = {"(": ")", "{": "}"}


def statements(text: str) -> Iterator[str]:
    r"""The statements of a script, in order.

    >>> list(statements("A=1; B=(2 # two\n 3)\nrun $A \\\n  --b 'c;d'"))
    ['A=1', 'B=(2 \n 3)', "run $A     --b 'c;d'"]
    """
    text = _without_documents(text.replace("\r\n", "\n"))
    scanner = _Scanner()
    for index, letter in enumerate(text):
        if scanner.take(letter, text[index - 1] if index else "\n"):
            yield from scanner.statement()
    yield from scanner.statement()


class _Scanner:
    """Letters of a statement so far, with the quotes and brackets that are open."""

    def __init__(self) -> None:
        self._letters: list[str] = []
        self._open: list[str] = []
        self._comment = False

    def statement(self) -> Iterator[str]:
        """The statement that has just ended, unless it is empty."""
        found = "".join(self._letters).strip()
        self._letters, self._open = [], []
        if found:
            yield found

    def take(self, letter: str, before: str) -> bool:
        """Take the next letter in; whether it ends the statement."""
        inside = self._open[-1] if self._open else ""
        if self._comment and letter != "\n":
            return False
        if letter == "\n" and before == "\\" and not self._comment:
            self._letters[-1:] = ["  "]  # the line goes on; one of a comment's does not
            return False
        self._comment = False
        if letter == "#" and inside not in ("'", '"', "}") and before in " \t\n;(":
            self._comment = True
            return False
        if before == "\\" and inside != "'":
            pass
        elif inside in ("'", '"') or letter == inside:
            self._within(letter, inside, before)
        elif letter in "'\"":
            self._open.append(letter)
        elif letter == "(" or (letter == "{" and before == "$"):
            self._open.append(_CLOSES[letter])
        elif letter in "\n;|&" and not self._open:
            return True
        self._letters.append(letter)
        return False

    def _within(self, letter: str, inside: str, before: str) -> None:
        """A letter within quotes, or the end of what is open."""
        if letter == inside:
            self._open.pop()
        elif inside == '"' and letter in "({" and before == "$":
            self._open.append(_CLOSES[letter])


def _without_documents(text: str) -> str:
    """The text without the lines of here-documents."""
    kept: list[str] = []
    until = ""
    for line in text.split("\n"):
        if until:
            until = "" if line.strip() == until else until
            continue
        found = _HERE.search(line.partition("#")[0]) if "<<<" not in line else None
        until = found[1] if found else ""
        kept.append(_HERE.sub("", line) if found else line)
    return "\n".join(kept)
