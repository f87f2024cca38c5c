"""Words of a bash script in braces, `a{b,c}` and `{1..4}`, before anything is put in them.

Source: Bash Reference Manual, 3.5.1 (Brace Expansion).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.tree import Part, Word
from topologies.files.budget import Budget
from topologies.files.reading import MOST_DEPTH

MOST_WORDS = 1_000  # of a word in braces, and of a range
_NUMBERS = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d{1,3}))?")
Piece = str | Part  # a letter that may be a brace, or a part that is none
Pieces = tuple[Piece, ...]


def braced(word: Word, budget: Budget) -> list[Word]:
    """The words that a word in braces becomes, itself where it has none. What is quoted or an
    expansion is no brace.

    >>> word = (Part("text", "a{b,{1..2}}"),)
    >>> ["".join(part.text for part in each) for each in braced(word, Budget("", "", 99, OSError))]
    ['ab', 'a1', 'a2']
    """
    if not any("{" in part.text for part in word if _is_plain(part)):
        return [word]
    pieces: Pieces = tuple(
        piece for part in word for piece in (part.text if _is_plain(part) else (part,))
    )
    budget.charge(len(pieces))
    found = _Braces(pieces, _closed(pieces), budget).words(0, len(pieces))
    return [tuple(_joined(each)) for each in found]


def numbers(first: int, step: int, last: int) -> list[int]:
    """The numbers from the first to the last, both included."""
    found = range(first, last + (1 if step > 0 else -1), step)
    if len(found) > MOST_WORDS:
        raise FrameworkError(f"a range of the script has more than {MOST_WORDS:,} numbers")
    return list(found)


def _is_plain(part: Part) -> bool:
    return part.kind == "text" and not part.quoted


def _joined(pieces: Pieces) -> Iterator[Part]:
    """Pieces as parts, letters in a row as one."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield Part("text", text)
        text = ""
        yield piece
    if text:
        yield Part("text", text)


def _closed(pieces: Pieces) -> dict[int, int]:
    """Where each brace that is closed is so."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for at, piece in enumerate(pieces):
        if piece == "{":
            opened.append(at)
        elif piece == "}" and opened:
            closed[opened.pop()] = at
    return closed


@dataclass
class _Braces:
    """The pieces of a word, and where its braces are closed."""

    pieces: Pieces
    closed: Mapping[int, int]
    budget: Budget
    depth: int = 0

    def words(self, start: int, end: int) -> list[Pieces]:
        """What the pieces from a place to another become."""
        found: list[Pieces] = [()]
        at = begin = start
        while at < end:
            choices = self._choices(at) if at in self.closed else []
            if not choices:
                at += 1
                continue
            found = self._product(found, [self.pieces[begin:at]])
            found = self._product(found, choices)
            at = begin = self.closed[at] + 1
        return self._product(found, [self.pieces[begin:end]])

    def _product(self, left: Sequence[Pieces], right: Sequence[Pieces]) -> list[Pieces]:
        if len(left) * len(right) > MOST_WORDS:
            raise FrameworkError(f"braces of the script make more than {MOST_WORDS:,} words")
        self.budget.charge(sum(map(len, left)) * len(right) + sum(map(len, right)) * len(left))
        return [before + after for before in left for after in right]

    def _choices(self, at: int) -> list[Pieces]:
        """What the brace at a place stands for; nothing where it is none."""
        end = self.closed[at]
        inner = self.pieces[at + 1 : end]
        self.budget.charge(len(inner))
        if found := _range(inner):
            return found
        ends = [at, *self._commas(at), end]
        if len(ends) == 2:
            return []
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise FrameworkError(f"the script's braces nest more than {MOST_DEPTH} deep")
        words = [
            word for before, behind in pairwise(ends) for word in self.words(before + 1, behind)
        ]
        self.depth -= 1
        return words

    def _commas(self, at: int) -> Iterator[int]:
        """The commas of the brace at a place, without those of braces in it."""
        end = self.closed[at]
        at += 1
        while at < end:
            if self.pieces[at] == ",":
                yield at
            at = self.closed.get(at, at) + 1


def _range(inner: Pieces) -> list[Pieces]:
    """The words of `1..4`, `01..10`, `8..2..2` or `a..d`; nothing of others."""
    text = "".join(piece if isinstance(piece, str) else " " for piece in inner[:40])
    if found := _NUMBERS.fullmatch(text):
        first, last = int(found[1]), int(found[2])
        padded = any(re.match(r"-?0\d", each) for each in (found[1], found[2]))
        width = max(len(found[1]), len(found[2])) if padded else 0
        return [tuple(f"{each:0{width}d}") for each in _steps(first, last, found[3])]
    if found := _LETTERS.fullmatch(text):
        return [(chr(each),) for each in _steps(ord(found[1]), ord(found[2]), found[3])]
    return []


def _steps(first: int, last: int, step: str | None) -> list[int]:
    size = abs(int(step or 1)) or 1
    return numbers(first, size if first <= last else -size, last)
