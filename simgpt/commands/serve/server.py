"""The server of the page: HTTP on the loopback interface, for whoever knows the token.

Other programs and users of the machine can connect to a port on 127.0.0.1, and so can any page in
the user's own browser. So every address begins with a random token (403 without it); the Host
header must name the loopback interface, for else a foreign name that resolves to 127.0.0.1 could
read answers ("DNS rebinding"); requests from pages of other origins are refused. Connections, their
silence and the size of what they send are bounded.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any
from urllib.parse import urlsplit

from simgpt.commands.serve.answers import ANSWERS, QUESTION, answered
from simgpt.options import strict
from topologies.errors import SimgptError
from topologies.files.reading import shipped_text

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
MOST_CONNECTIONS = 16
SILENT_S = 15
MOST_BYTES = 2**20  # of a request: a config.json of a model is some kilobytes
PAGE = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "bars.js": ("bars.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class ServeError(SimgptError):
    """The page cannot be served there."""


class _RefusedError(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class PageServer(ThreadingHTTPServer):
    """The page and its answers under one random address; a port of 0 is any that is free.

    Requests are read side by side and answered one by one. A ServeError says that the port is not
    to be had.
    """

    daemon_threads = True  # an answer under way does not hold up the end

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self.one_by_one = threading.Lock()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ServeError(f"cannot serve on port {port}: {error.strerror}") from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or close where too many connections are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except Exception:  # no thread was started; Ctrl-C may come when one was, which releases
            self._free.release()
            raise

    def process_request_thread(self, request: socket | tuple[bytes, socket], where: Any) -> None:
        """Answer, and let the next connection in."""
        try:
            super().process_request_thread(request, where)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave connections that broke alone; what else goes wrong is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = SILENT_S
    server_version, sys_version = "simgpt", ""

    def do_GET(self) -> None:
        self._respond(self._page)

    def do_POST(self) -> None:
        self._respond(self._answer)

    def _respond(self, send: Callable[[str], None]) -> None:
        """Send what is asked for below the token, or why not."""
        try:
            self._check()
            send(self._name())
        except _RefusedError as refused:
            self._send_json(refused.status, {"error": str(refused)})

    def _page(self, name: str) -> None:
        if name not in PAGE:
            raise _RefusedError(404, "there is no such page")
        file, kind = PAGE[name]
        content = shipped_text("simgpt", f"commands/serve/{file}")
        self._send(200, content, f"{kind}; charset=utf-8")

    def _answer(self, name: str) -> None:
        if name not in ANSWERS:
            raise _RefusedError(404, "there is no such question")
        try:
            question = QUESTION.parsed(self._sent().decode(), "the question")
        except (SimgptError, UnicodeDecodeError):
            raise _RefusedError(400, "the question is not valid JSON") from None
        with self.server.one_by_one:
            answer = answered(name, question)
        self._send_json(200, answer)

    def _check(self) -> None:
        """Refuse who came by a foreign name, or from a page of another origin."""
        host = self.headers.get("Host", "")
        if host.partition(":")[0] not in NAMES:
            raise _RefusedError(403, "this page is served to this machine alone")
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            raise _RefusedError(403, "another page asks for this one")

    def _name(self) -> str:
        """What is asked for below the token."""
        token, _, name = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _RefusedError(403, "the address lacks the token that `simgpt serve` printed")
        return name

    def _sent(self) -> bytes:
        """The body of the request."""
        if self.headers.get_content_type() != "application/json":
            raise _RefusedError(415, "a question is JSON")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            raise _RefusedError(411, "a question says its length")
        if len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
            raise _RefusedError(413, "the question is larger than 1 MiB")
        return self.rfile.read(int(length))

    def _send_json(self, status: int, record: dict[str, Any]) -> None:
        self._send(status, json.dumps(strict(record)), "application/json")

    def _send(self, status: int, content: str, kind: str) -> None:
        body = content.encode()
        self.send_response(status)
        for key, value in {**HEADERS, "Content-Type": kind, "Content-Length": len(body)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the address holds the token."""
