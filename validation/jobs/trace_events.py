"""The events of a Chrome trace, one after the other: a trace of hundreds of megabytes is never held
whole.

A trace is either a JSON object whose `traceEvents` is a list of events, as torch.profiler writes
it, or that list alone; either may be compressed by gzip. What was read and decoded is dropped, so
that memory holds the part of the file that is being read (`BLOCK`) and what its reader keeps of
the events.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from topologies.files.printable import path_shown
from topologies.files.reading import open_regular
from validation.jobs.errors import LogError

BLOCK = 4 * 2**20  # characters that are read at once
MOST_VALUE = 64 * 2**20  # characters of one event, or of what stands beside the events
MOST_TEXT = 8 * 2**30  # characters of a trace; some minutes
GZIP = b"\x1f\x8b"
EVENTS = "traceEvents"
_NUMBER_GOES_ON = re.compile(r"[-+.eE0-9]*\Z")  # perhaps, in the next block
_BLANK = re.compile(r"[ \t\n\r]*")


class TraceEvents:
    """A trace that is being read: what stands beside the events in `about`, as far as it was come
    by, and the events by iteration. Errors are a LogError."""

    def __init__(self, path: Path) -> None:
        self.about: dict[str, Any] = {}
        self._path, self._name = path, path_shown(path)
        self._read: Callable[[int], bytes] = lambda _: b""
        self._text, self._at, self._taken = "", 0, 0
        self._decoder = json.JSONDecoder()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every event that is a JSON object."""
        with open(open_regular(self._path), "rb") as file:
            self._read = _reader(file)
            yield from self._all()

    def _all(self) -> Iterator[dict[str, Any]]:
        opening = self._next()
        if opening == "[":
            yield from self._events()
        elif opening == "{":
            while self._member():
                yield from self._events()
        else:
            self._refuse("is no trace: it begins with neither { nor [")

    def _member(self) -> bool:
        """Read on to the list of events; False at the end of the object."""
        while True:
            if self._peek() in ("}", ",") and self._next() == "}":
                return False
            key = self._value()
            if self._next() != ":":
                self._refuse("is not valid JSON")
            if key == EVENTS and self._peek() == "[":
                self._next()
                return True
            self.about[str(key)] = self._value()

    def _events(self) -> Iterator[dict[str, Any]]:
        while True:
            if self._peek() == "]":
                self._next()
                return
            event = self._value()
            if isinstance(event, dict):
                yield event
            if self._peek() == ",":
                self._next()
            elif self._peek() != "]":
                self._refuse("is not valid JSON")

    def _value(self) -> Any:
        """The next value; one that ends where the text does may go on in the next block."""
        while True:
            self._peek()
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                self._refuse("is nested too deep")
            except ValueError:
                end = len(self._text)
            else:
                if not _NUMBER_GOES_ON.match(self._text, end) or not self._more():
                    self._at = end
                    return value
                continue
            if end - self._at > MOST_VALUE:
                self._refuse("is not valid JSON")
            if not self._more():
                self._cut_off()

    def _next(self) -> str:
        letter = self._peek()
        self._at += 1
        return letter

    def _peek(self) -> str:
        """The next character that is no blank."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                self._cut_off()

    def _more(self) -> bool:
        """Read a block; False at the file's end."""
        try:
            block = self._read(BLOCK)
        except (OSError, EOFError, zlib.error):
            self._refuse("is compressed by gzip, and cut off or damaged")
        self._taken += len(block)
        if self._taken > MOST_TEXT:
            self._refuse(f"holds more than {MOST_TEXT // 2**30} GiB of text")
        text = block.decode("utf-8", "replace")
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(block)

    def _cut_off(self) -> NoReturn:
        self._refuse("is cut off before its end; write the trace again")

    def _refuse(self, why: str) -> NoReturn:
        raise LogError(f"{self._name} {why}") from None


def _reader(file: IO[bytes]) -> Callable[[int], bytes]:
    """What reads the next bytes of a trace, whole characters of UTF-8."""
    head = file.read(len(GZIP))
    file.seek(0)
    source: Any = gzip.GzipFile(fileobj=file) if head == GZIP else file

    def read(count: int) -> bytes:
        block: bytes = source.read(count)
        while block and block[-1] >= 0x80 and (more := source.read(1)):
            block += more
        return block

    return read
