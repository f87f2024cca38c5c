"""The head of an HTTP request, read strictly: what two readers could take for different requests is
refused, so that nothing that stands before this server sees another request than it does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from topologies.records import record

MOST_BYTES = 32 * 1024  # browsers send the cookies of all other servers on this machine
MOST_LINE = 8 * 1024
MOST_FIELDS = 100
ONCE = frozenset(  # fields whose second value another reader might take
    ["host", "origin", "content-type", "content-length", "transfer-encoding", "expect"]
)

_END = b"\r\n\r\n"
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"(" + _TOKEN.pattern + rb") ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_BROKEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")


class RefusedError(Exception):
    """A request that is not answered, and the status that says so; the words repeat none of it."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@record
class Head:
    """Method, target and fields of a request; the fields' names are in small letters."""

    method: str
    target: str
    fields: Mapping[str, str]


class HeadReader:
    """Collects a head piece by piece; each byte is looked at once, whatever the pieces."""

    def __init__(self) -> None:
        self.received = bytearray()  # after the head: what followed it
        self.method = ""
        self._line: tuple[str, str] | None = None

    def read(self, piece: bytes) -> Head | None:
        """The head, once it is whole; a RefusedError as soon as it cannot be one."""
        seen = len(self.received)
        self.received += piece
        end = self.received.find(_END, max(0, seen - len(_END) + 1))
        within = end if end >= 0 else len(self.received)
        if _BROKEN.search(self.received, max(0, seen - 1), within):
            raise RefusedError(400, "the head of the request has characters that it must not have")
        if self._line is None:
            self._read_line(max(0, seen - 1), within)
        if within > MOST_BYTES:
            raise RefusedError(431, "the head of the request is too large")
        if end < 0 or self._line is None:
            return None
        lines = bytes(self.received[:end]).split(b"\r\n")[1:]
        del self.received[: end + len(_END)]
        return Head(*self._line, _fields(lines))

    def _read_line(self, start: int, within: int) -> None:
        end = self.received.find(b"\r\n", start, within + 2)
        if max(end, 0) > MOST_LINE or (end < 0 and within > MOST_LINE):
            raise RefusedError(414, "the request line is too long")
        if end < 0:
            return
        found = _LINE.fullmatch(self.received, 0, end)
        if found is None:
            raise RefusedError(400, "the request line is not one of HTTP")
        if found[3] != b"1":
            raise RefusedError(505, "this server speaks HTTP/1.1")
        self.method = found[1].decode("ascii")
        self._line = self.method, found[2].decode("ascii")


def _fields(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MOST_FIELDS:
        raise RefusedError(431, "the request has too many header fields")
    fields: dict[str, str] = {}
    for line in lines:
        raw, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(raw):
            raise RefusedError(400, "a header field of the request is not one of HTTP")
        name, text = raw.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if name in fields:
            if name in ONCE:
                raise RefusedError(400, f"the request has the header field {name} more than once")
            text = f"{fields[name]}, {text}"
        fields[name] = text
    return fields
