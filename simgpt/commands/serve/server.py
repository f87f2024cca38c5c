"""The server of the page: HTTP on the loopback interface, for whoever knows the token.

Other programs and users of the machine can connect to a port on 127.0.0.1, and so can any page in
the user's own browser. So every address begins with a random token (403 without it); the Host
header must be the loopback interface's with the port of this server, for else a foreign name that
resolves to 127.0.0.1 could read answers ("DNS rebinding"); requests from pages of other origins are
refused. Connections, their time and the size of what they send are bounded.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import socket

from simgpt.commands.serve.answers import ANSWERS, QUESTION, answered
from simgpt.commands.serve.connections import Connections, Question
from simgpt.commands.serve.heads import Head, RefusedError
from simgpt.commands.serve.replies import Reply, json_reply
from topologies.errors import SimgptError
from topologies.files.reading import shipped_text

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
HTTP_PORT = 80  # which browsers leave out of Host
BACKLOG = 256
MOST_BYTES = 2**20  # of a question: a config.json of a model is some kilobytes
PAGE = {  # file and kind, by name below the token
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "bars.js": ("bars.js", "text/javascript"),
}


class ServeError(SimgptError):
    """The page cannot be served there."""


class PageServer:
    """The page and its answers under one random address; a port of 0 is any that is free.

    Questions are answered one by one. A ServeError says that the port is not to be had.
    """

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        try:
            self.socket = socket.create_server((HOST, port), backlog=BACKLOG)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise ServeError(f"cannot serve on port {port}: {why}") from None
        self.port: int = self.socket.getsockname()[1]
        suffixes = ("", f":{HTTP_PORT}") if self.port == HTTP_PORT else (f":{self.port}",)
        self._hosts = [name + suffix for name in NAMES for suffix in suffixes]
        self._page = {name: _part(*part) for name, part in PAGE.items()}
        self._connections = Connections(self.socket, self._admitted, _worked)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def serve(self) -> None:
        """Answer requests until `stop`."""
        self._connections.serve()

    def stop(self) -> None:
        """Let `serve` return; from any thread."""
        self._connections.stop()

    def __enter__(self) -> PageServer:
        return self

    def __exit__(self, *raised: object) -> None:
        self._connections.close()

    def _admitted(self, head: Head) -> Reply | Question:
        """The reply to a request for a part of the page, or the question that a request asks."""
        if head.method not in ("GET", "POST"):
            raise RefusedError(501, "a page is got, and a question posted")
        if not head.target.startswith("/"):
            raise RefusedError(400, "the address of a request begins with /")
        self._check_origin(head)
        name = self._name(head.target)
        if head.method == "POST":
            return _question(name, head)
        if name not in self._page:
            raise RefusedError(404, "there is no such page")
        return self._page[name]

    def _check_origin(self, head: Head) -> None:
        """Refuse who came by a foreign name, or from a page of another origin."""
        host = head.fields.get("host", "")
        if host not in self._hosts:
            ours = " or ".join(self._hosts)
            raise RefusedError(403, f"this page is served to this machine alone, as {ours}")
        if head.fields.get("origin", f"http://{host}") != f"http://{host}":
            raise RefusedError(403, "another page asks for this one")

    def _name(self, target: str) -> str:
        """What is asked for below the token."""
        token, _, name = target.partition("?")[0].removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise RefusedError(403, "the address lacks the token that `simgpt serve` printed")
        return name


def _part(file: str, kind: str) -> Reply:
    content = shipped_text("simgpt", f"commands/serve/{file}")
    return Reply(200, content, f"{kind}; charset=utf-8")


def _question(name: str, head: Head) -> Question:
    """The question that a head announces."""
    if name not in ANSWERS:
        raise RefusedError(404, "there is no such question")
    kind = head.fields.get("content-type", "").partition(";")[0]
    if kind.strip().lower() != "application/json":
        raise RefusedError(415, "a question is JSON")
    length = head.fields.get("content-length", "")
    if not re.fullmatch("[0-9]+", length) or "transfer-encoding" in head.fields:
        raise RefusedError(411, "a question says its length")
    if len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
        raise RefusedError(413, "the question is larger than 1 MiB")
    waits = head.fields.get("expect", "").lower() == "100-continue"
    return Question(name, int(length), waits)


def _worked(name: str, body: bytes) -> Reply:
    """The answer to a question, if its body is one."""
    try:
        question = QUESTION.parsed(body.decode(), "the question")
    except (SimgptError, UnicodeDecodeError):
        raise RefusedError(400, "the question is not valid JSON") from None
    return json_reply(200, answered(name, question))
