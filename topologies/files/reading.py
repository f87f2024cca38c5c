"""The one reader of files that users hand in: every file of theirs is read here.

A file is read only if it is a regular one, no larger than its kind ever is, UTF-8, and nested no
deeper than `MOST_DEPTH`; its texts can be written again, and its numbers are finite. What is
refused is refused in one sentence, by the error of its kind. Files that come with the program are
trusted, and read by `shipped_text` and `shipped_toml`.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from topologies.errors import SimgptError
from topologies.files.printable import path_shown, shown
from topologies.records import record

SMALL_BYTES = 2**20  # a machine, a model, a plan or a study
TABLE_BYTES = 16 * 2**20  # as CSV
ANSWER_BYTES = 64 * 2**20
MOST_VALUES = 2**22  # of one document: as Python objects, some 100 bytes each
MOST_LINES = 100_000
MOST_DEPTH = 32
MOST_BITS = 1000  # of an integer, so that it is a finite float too

# Texts and comments of TOML. One without an end goes on to that of its line or of the file: there
# the parser stops.
_QUOTED = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+"{0,5}'''
    r"""|'''(?:[^']|'(?!''))*+'{0,5}"""
    r"""|"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?|#[^\n]*+""",
    re.DOTALL,
)
_PART = "[A-Za-z0-9_-]++"
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_DEPTH}}}")


@record
class UserFile:
    """A kind of file: what it holds one of, the error it raises, and the size it may have.

    With `constants` Infinity and NaN, which Python writes into JSON, stand for themselves as texts,
    so that a key of which no number is taken may have them.
    """

    noun: str
    error: type[SimgptError]
    most_bytes: int = SMALL_BYTES
    most_values: int = MOST_VALUES
    constants: bool = False

    def content(self, path: str | Path) -> bytes:
        """The bytes of a file."""
        content = self.head(path, self.most_bytes + 1)
        if len(content) > self.most_bytes:
            most = f"{self.most_bytes // 2**20} MiB"
            raise self.error(f"{path_shown(path)} is larger than {most}, as no {self.noun} is")
        return content

    def head(self, path: str | Path, most: int) -> bytes:
        """The first bytes of a file, of whatever size it is."""
        try:
            with open(open_regular(path), "rb") as file:
                return file.read(most)
        except ValueError:
            self._cannot_read(path, "a name has no NUL character")
        except OSError as error:
            self._cannot_read(path, error.strerror)

    def text(self, path: str | Path) -> str:
        """The text of a file in UTF-8, without the mark that some editors begin one with."""
        try:
            return self.content(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            where = f"byte {error.start} is not text in UTF-8"
            raise self.error(f"{path_shown(path)} is not a {self.noun}: {where}") from None

    def document(self, path: str | Path) -> Any:
        """What a TOML file says, or, under any other name, a JSON file."""
        return self.parsed(self.text(path), path_shown(path), toml=str(path).endswith(".toml"))

    def lines(self, path: str | Path) -> list[str]:
        """The lines of a table in CSV, with their ends; a cell in quotes may have some of its
        own."""
        lines = list(io.StringIO(self.text(path), newline=""))
        if len(lines) > MOST_LINES:
            raise self.error(f"{path_shown(path)} has more than {MOST_LINES:,} lines")
        return lines

    def parsed(self, text: str, origin: str, *, toml: bool = False) -> Any:
        """What a text in JSON or TOML says; `origin` names it in sentences."""
        kind = "TOML" if toml else "JSON"
        self.check_values(text, origin)
        if toml and _DEEP_KEY.search(_QUOTED.sub(_as_part, text)):
            self._too_deep(origin)  # the parser takes the square of a key's parts
        try:
            constant = str if self.constants else _refuse
            document = tomllib.loads(text) if toml else json.loads(text, parse_constant=constant)
        except RecursionError:
            self._too_deep(origin)
        except ValueError as error:
            own = isinstance(error, json.JSONDecodeError | tomllib.TOMLDecodeError | _NumberError)
            why = str(error) if own else "it has an integer of thousands of digits"
            raise self.error(f"{origin} is not valid {kind}: {why}") from None
        return self.checked(document, origin)

    def checked(self, document: Any, origin: str) -> Any:
        """The document that a parser made of a text, unless it holds what no file of ours may."""
        self._check(document, origin)
        return document

    def check_values(self, text: str, origin: str) -> None:
        """Refuse a text that may hold more values than memory should be spent on."""
        if sum(map(text.count, "[{,:=")) > self.most_values:
            raise self.error(f"{origin} holds more than {self.most_values:,} values")

    def _cannot_read(self, path: str | Path, why: str | None) -> NoReturn:
        raise self.error(f"cannot read the {self.noun} {path_shown(path)}: {why}") from None

    def _too_deep(self, origin: str) -> NoReturn:
        raise self.error(f"{origin} is nested more than {MOST_DEPTH} deep") from None

    def _check(self, document: Any, origin: str) -> None:
        """Refuses what no sentence, page or sum could hold, level by level."""
        level: list[Any] = [[document]]
        for _ in range(MOST_DEPTH + 1):
            level = [each for table in level for each in self._inner(table, origin)]
            if not level:
                return
        self._too_deep(origin)

    def _inner(self, table: Any, origin: str) -> Iterator[Any]:
        """The tables and lists of a table or a list, whose other values are sound."""
        named = isinstance(table, dict)
        for key, value in table.items() if named else enumerate(table, start=1):
            if named and (wrong := _wrong(key)):
                raise self.error(f"{origin}: the key {shown(key)} {wrong}")
            if isinstance(value, dict | list):
                yield value
            elif wrong := _wrong(value):
                raise self.error(f"{origin}: {shown(key) if named else f'value {key}'} {wrong}")


def open_regular(path: str | Path, how: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, or an OSError; a pipe that nobody writes to is not waited
    for."""
    descriptor = os.open(path, how | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def shipped_text(package: str, name: str) -> str:
    """The text of a file that comes with a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def shipped_toml(package: str, name: str) -> dict[str, Any]:
    """What a TOML file says that comes with a package."""
    return tomllib.loads(shipped_text(package, name))


def _as_part(quoted: re.Match[str]) -> str:
    """What stands for a text in a key; nothing does for a comment."""
    return "" if quoted[0].startswith("#") else "q"


class _NumberError(ValueError):
    """A word for a number that JSON does not know."""


def _refuse(word: str) -> NoReturn:
    raise _NumberError(f"{word} is not a number")


def _wrong(value: Any) -> str:
    """What is wrong with a value that holds no others, if anything is."""
    if isinstance(value, str):
        sound = value.isascii() or _encodes(value)
        return "" if sound else "has half of a surrogate pair, which is not a text"
    if isinstance(value, int):  # bool among them
        return "" if value.bit_length() <= MOST_BITS else "is an integer of hundreds of digits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"is {value}, which is not a finite number"
    return "" if value is None else f"is the date {value}, where no date belongs"


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
