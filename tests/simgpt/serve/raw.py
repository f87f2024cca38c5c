"""Requests as bytes, and what comes back, without a library that would mend either."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass

PATIENCE_S = 60.0  # turns what hangs into a failure
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True)
class Got:
    """A reply: its status, its header fields with names in small letters, and its body."""

    status: int
    fields: dict[str, str]
    body: bytes


def connected(port: int) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def sent(port: int, *pieces: bytes, ends: bool = False) -> Got:
    """The reply to a request that is sent piece by piece; with `ends` nothing can follow it."""
    with connected(port) as connection:
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            for piece in pieces:
                connection.sendall(piece)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        return reply(connection)


def reply(connection: socket.socket) -> Got:
    """What comes until the server closes."""
    received = bytearray()
    while piece := connection.recv(2**16):
        received += piece
    return parsed(bytes(received))


def parsed(received: bytes) -> Got:
    """A reply as HTTP has it; an AssertionError where it is not one, or more than one."""
    head, end, body = received.removeprefix(CONTINUE).partition(b"\r\n\r\n")
    assert end, f"no reply: {received[:100]!r}"
    line, *lines = head.decode("ascii").split("\r\n")
    version, status, _ = line.split(" ", 2)
    assert version == "HTTP/1.1"
    fields = dict(_field(each) for each in lines)
    assert len(fields) == len(lines)
    assert int(fields["content-length"]) == len(body) or not body
    return Got(int(status), fields, body)


def _field(line: str) -> tuple[str, str]:
    name, value = line.split(": ", 1)
    return name.lower(), value


def request(line: str, fields: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """A request as bytes."""
    lines = [line, *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def unguarded(got: Got) -> list[str]:
    """What a reply lacks of what keeps a browser from doing harm with it."""
    policy = got.fields.get("content-security-policy", "")
    wanted = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }
    lacks = [name for name, value in wanted.items() if got.fields.get(name) != value]
    lacks += [] if "default-src 'none'" in policy else ["content-security-policy"]
    is_html = got.fields.get("content-type", "").startswith("text/html")
    return lacks + (["a body that is no page"] if is_html and got.status != 200 else [])
