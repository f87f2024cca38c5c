"""The events of a Chrome trace, one after the other: a trace of hundreds of megabytes is never held
whole.

A trace is either a JSON object whose `traceEvents` is a list of events, as torch.profiler writes
it, or that list alone; either may be compressed by gzip. What was read and decoded is dropped, and
what stands beside the events is gone over undecoded, so that memory holds the part of the file that
is being read (`BLOCK`, or one value) and what its reader keeps of the events.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from topologies.files.budget import Budget
from topologies.files.printable import path_shown
from topologies.files.reading import open_regular
from validation.jobs.errors import LogError
from validation.jobs.log_text import GZIP, most_unpacked

BLOCK = 2**20  # bytes that are read at once
MOST_VALUE = 2 * 2**20  # characters of one event: as Python objects, some 40 bytes each
MOST_TEXT = 8 * 2**30  # bytes of a trace; some minutes
MOST_BESIDE = 2**21  # brackets beside the events
MOST_EVENTS = 10_000_000  # some 2 GB
# Events and values that a trace of any size may have, and the mean length of all further ones.
FREE_EVENTS, EVENT_BYTES, PACKED_EVENT_BYTES = 250_000, 32, 8
FREE_VALUES, VALUE_BYTES = 2**22, 3
EVENTS = "traceEvents"
_NUMBER_GOES_ON = re.compile(r"[-+.eE0-9]*\Z")  # perhaps, in the next block
_BLANK = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'(?:[^"{}\[\]]++|"(?:[^"\\]|\\.)*+")*+', re.DOTALL)  # but for brackets
DISTRIBUTED = "distributedInfo"


class TraceEvents:
    """A trace that is being read: what stands beside the events of ranks in `distributed`, as far
    as it was come by, and the events by iteration. Errors are a LogError."""

    def __init__(self, path: Path) -> None:
        self.distributed: Any = None
        self._path, self._name = path, path_shown(path)
        self._read: Callable[[int], bytes] = lambda _: b""
        self._text, self._at, self._taken = "", 0, 0
        self._decoder = json.JSONDecoder()
        self._most_text, self._most_events = MOST_TEXT, MOST_EVENTS
        self._values = Budget(self._name, "values", FREE_VALUES, LogError)
        self._beside = Budget(self._name, "values beside its events", MOST_BESIDE, LogError)
        self._count = Budget(self._name, "events", FREE_EVENTS, LogError)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every event that is a JSON object."""
        with open(open_regular(self._path), "rb") as file:
            packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            self._most_events = size // PACKED_EVENT_BYTES if packed else MOST_EVENTS
            self._most_text = min(MOST_TEXT, most_unpacked(file)) if packed else MOST_TEXT
            self._read = _reader(gzip.GzipFile(fileobj=file) if packed else file)
            yield from self._all()

    def _all(self) -> Iterator[dict[str, Any]]:
        opening = self._next()
        if opening == "[":
            yield from self._events()
        elif opening == "{":
            while self._member():
                yield from self._events()
        else:
            self._refuse("is not a trace: it begins with neither { nor [")

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
            if key == DISTRIBUTED:
                self.distributed = self._value()
            else:
                self._skip()

    def _events(self) -> Iterator[dict[str, Any]]:
        while True:
            if self._peek() == "]":
                self._next()
                return
            event = self._value()
            self._count.charge(1)
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
                self._refuse(
                    f"is not valid JSON, or has a value of more than {MOST_VALUE:,} characters"
                )
            if not self._more():
                self._cut_off()

    def _skip(self) -> None:
        """Go over the next value."""
        depth = 0
        if self._peek() not in "{[":
            self._value()
            return
        while True:
            found = _PLAIN.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            letter = self._text[self._at : self._at + 1]
            if letter and letter != '"':
                self._at += 1
                self._beside.charge(1)
                depth += 1 if letter in "{[" else -1
                if depth == 0:
                    return
            elif len(self._text) - self._at > MOST_VALUE:
                self._refuse(f"has a text of more than {MOST_VALUE:,} characters")
            elif not self._more():
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
        if self._taken > self._most_text:
            self._refuse(f"takes more than {self._most_text:,} bytes of text")
        further = min(self._taken // EVENT_BYTES, self._most_events)
        self._count.most = min(FREE_EVENTS + further, MOST_EVENTS)
        self._values.most += len(block) // VALUE_BYTES
        self._values.charge(sum(map(block.count, (b"[", b"{", b",", b":"))))
        text = block.decode("utf-8", "replace")
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(block)

    def _cut_off(self) -> NoReturn:
        self._refuse("is cut off before its end; write the trace again")

    def _refuse(self, why: str) -> NoReturn:
        raise LogError(f"{self._name} {why}") from None


def _reader(source: Any) -> Callable[[int], bytes]:
    """What reads the next bytes of a trace, whole characters of UTF-8."""

    def read(count: int) -> bytes:
        block: bytes = source.read(count)
        while block and block[-1] >= 0x80 and (more := source.read(1)):
            block += more
        return block

    return read
