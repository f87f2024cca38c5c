"""Reading files that others hand in: JSON whose every value is of its kind, or one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.errors import SimgptError
from topologies.files.printable import path_shown
from topologies.files.reading import ANSWER_BYTES, MOST_VALUES, UserFile
from topologies.records import record


class ReportError(SimgptError):
    """Files that do not hold answers of simgpt."""


ANSWER = UserFile("answer", ReportError, ANSWER_BYTES)
ROWS = UserFile("rows of a sweep", ReportError, 4 * ANSWER_BYTES, 4 * MOST_VALUES)
LONGEST_ROW = 2**20  # characters
MOST_ROWS = 100_000  # as many points as a study has at most


def document_of(path: Path) -> Any:
    """The JSON of a file, whatever it is called."""
    return ANSWER.parsed(ANSWER.text(path), path_shown(path))


def lines_of(path: Path) -> tuple[list[str], str]:
    """The lines of a sweep's results.jsonl, and what follows the last of them, cut short."""
    text = ROWS.text(path)
    if text.count("\n") > MOST_ROWS:
        raise ReportError(f"{path_shown(path)} has more than {MOST_ROWS:,} rows")
    ROWS.check_values(text, path_shown(path))
    *lines, torn = text.split("\n")  # a reason may have other line ends
    if max(map(len, [*lines, torn])) > LONGEST_ROW:
        raise ReportError(f"{path_shown(path)} has a row of more than {LONGEST_ROW:,} characters")
    return lines, torn


@record(slots=False)
class Reader:
    """Values of a document by key, each of its kind or refused in one sentence."""

    document: Mapping[str, Any]
    origin: str

    def text(self, key: str) -> str:
        """A text."""
        value = self._value(key)
        return value if isinstance(value, str) else self._refuse(key, "text")

    def word(self, key: str, known: Sequence[str]) -> str:
        """One of some words."""
        value = self.text(key)
        return value if value in known else self._refuse(key, f"one of {', '.join(known)}")

    def whole(self, key: str) -> int:
        """A whole number above 0."""
        value = self._value(key)
        plain = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62
        return int(value) if plain else self._refuse(key, "a whole number above 0")

    def number(self, key: str) -> float:
        """A finite number."""
        value = self._value(key)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        good = plain and abs(value) < 1e300 and math.isfinite(value)
        return float(value) if good else self._refuse(key, "a number")

    def positive(self, key: str) -> float:
        """A number above 0."""
        value = self.number(key)
        return value if value > 0 else self._refuse(key, "a number above 0")

    def table(self, key: str) -> Mapping[str, Any]:
        """A table."""
        value = self._value(key)
        return value if isinstance(value, dict) else self._refuse(key, "a table")

    def rows(self, key: str) -> list[Reader]:
        """The rows of a list of tables."""
        value = self._value(key)
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            return self._refuse(key, "a list of tables")  # type: ignore[no-any-return]
        return [Reader(row, f"{self.origin}.{key}") for row in value]

    def numbers(self, key: str) -> Mapping[str, float]:
        """A table of numbers."""
        of = self.within(key)
        return {name: of.number(name) for name in of.document}

    def list_of_numbers(self, key: str, least: int) -> list[float]:
        """A list of at least so many finite numbers."""
        value = self._value(key)
        if not isinstance(value, list) or len(value) < least:
            value = self._refuse(key, f"a list of {least} or more numbers")
        each = Reader({str(at): number for at, number in enumerate(value)}, f"{self.origin}.{key}")
        return [each.number(at) for at in each.document]

    def known(self, key: str, maybe: Sequence[str]) -> Mapping[str, float | None]:
        """A table of numbers, of which some may be null: not known."""
        of = self.within(key)
        return {
            name: None if value is None and name in maybe else of.number(name)
            for name, value in of.document.items()
        }

    def within(self, key: str) -> Reader:
        """What a table holds."""
        return Reader(self.table(key), f"{self.origin}: {key}")

    def _value(self, key: str) -> Any:
        if key not in self.document:
            raise ReportError(f"{self.origin} has no {key}, so it is not an answer of simgpt")
        return self.document[key]

    def _refuse(self, key: str, wanted: str) -> Any:
        shown = json.dumps(self.document[key])[:60]
        raise ReportError(f"{self.origin}: {key} = {shown} should be {wanted}")
