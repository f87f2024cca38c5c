"""Answers to HTTP requests as bytes. All of them, refusals too, keep the address to themselves and
forbid the browser whatever the page does not need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from http import HTTPStatus
from typing import Any

from simgpt.options import strict
from topologies.records import record

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@record
class Reply:
    """A status, what is said, and fields beside those that all replies have."""

    status: int
    content: str
    kind: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self, *, head_only: bool = False) -> bytes:
        """The reply as it is sent."""
        body = self.content.encode()
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        given = {"Content-Type": self.kind, "Content-Length": str(len(body))}
        lines += [f"{key}: {value}" for key, value in {**HEADERS, **given, **self.fields}.items()]
        head = "\r\n".join([*lines, "", ""]).encode("ascii")
        return head if head_only else head + body


def json_reply(status: int, record: Mapping[str, Any]) -> Reply:
    """A record as JSON."""
    return Reply(status, json.dumps(strict(record)), "application/json")


def refusal(status: int, words: str) -> Reply:
    """Why a request is not answered."""
    return json_reply(status, {"error": words, "fields": []})


BUSY = Reply(
    503,
    json.dumps({"error": "busy, try again", "fields": []}),
    "application/json",
    {"Retry-After": "1"},
)
