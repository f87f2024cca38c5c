"""HTTP requests by chance for `simgpt serve`: bytes in which TOKEN and PORT stand for the server's.

`page.py` sends them, and judges what comes back.
"""

from __future__ import annotations

import json

from tests.simgpt.fuzz.damage import chewed, mutated
from tests.simgpt.fuzz.pieces import Pieces
from tests.simgpt.fuzz.values import EVIL, MACHINES, MARK, WEIRD

REQUEST = "request"  # the file with the bytes
ENDS = "ends"  # is there where nothing can follow them
TARGETS = [
    *("/", "/TOKEN", "/TOKEN/", "/TOKEN/page.js", "/TOKEN/nope", "/TOKEN/../server.py", "//TOKEN/"),
    *("/TOKEN/%2e%2e/page.py", "/TOKEN/predict?tp=1", "/TOKEN/#x", "/wrong/predict", "*", "x", ""),
    *("http://[", "http://[::1", "http://127.0.0.1:PORT/TOKEN/", "http://x:99999/", "127.0.0.1:80"),
    *("http://127.0.0.1:PORT:PORT/", "/\u00e9", "/%00", "/TOKEN/" + "x" * 9000, "/TOKEN/;a?b#c"),
    *("\\\\x\\y", "/TOKEN//", "/TOKEN/predict/", f"/TOKEN/<b id={MARK}>", "javascript:x", "///["),
]
METHODS = [
    *("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PATCH", "PRI", "get"),
    *("G\u00cbT", "", " ", "G\tET", "<b>", "__class__", "x" * 5000),
]
VERSIONS = [
    *("HTTP/1.0", "HTTP/1.1", "HTTP/0.9", "HTTP/2.0", "HTTP/1", "HTTP/1.1.1", "HTTP/11"),
    "http/1.1",
    *("HTTP/" + "9" * 5000, "HTTP/1.\u00b2", "HTTP/-1.1", "", "x", "HTTP/1.1 x"),
]
HOSTS = [
    *("localhost:PORT", "127.0.0.1", "localhost:1@evil.com", "127.0.0.1:80, evil.com", "evil.com"),
    *("[::1]:PORT", "[", "localhost:PORT.", "0:PORT", "", "localhost:\u00b2", "x" * 5000, "\x7f"),
]
LENGTHS = ["-1", "+5", "", "0", "5", "5, 5", "1e3", "0x10", "1048577", "9" * 5000, "\u00b2", " 7"]
FIELDS = [
    *("Transfer-Encoding: chunked", "Transfer-Encoding:chunked", "Transfer-Encoding: x, chunked"),
    *("Content-Length: 5", "Content-Type: text/plain", "Expect: 100-continue", "Expect: x"),
    *("Origin: null", "Origin: http://evil.com", "Origin: http://127.0.0.1:PORT", "Connection: x"),
    *("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "Host: evil.com", "Host : 127.0.0.1"),
    *(": x", "x", "x:", "\u00e9: x", "A: " + "x" * 70000, " folded", "A: b\n c", "A: \x00"),
    "A\r: b",
    *("Cookie: " + "a=b; " * 900, "Range: bytes=0-9999999999", "Accept-Encoding: gzip", "\t"),
]
NAMES = ["predict", "predict", "best", "fit", "config", "choices"]


class Requests(Pieces):
    """Draws requests: mostly nearly right ones, so that not all fail at the first check."""

    def _http(self) -> list[str]:
        noise = self.rng.randbytes(self.rng.randint(1, 99))
        content = self._request() if self.odds(0.95) else noise
        if self.odds(0.25):
            content = chewed(self.rng, content)
        self.files = {REQUEST: content}
        if self.odds(0.9):
            self.files[ENDS] = b""
        return ["serve"]

    def _request(self) -> bytes:
        rng = self.rng
        body = self._body()
        method, target, version = "POST", f"/TOKEN/{rng.choice(NAMES)}", "HTTP/1.1"
        method = rng.choice(METHODS) if self.odds(0.15) else method
        target = rng.choice(TARGETS) if self.odds(0.2) else target
        version = rng.choice(VERSIONS) if self.odds(0.1) else version
        length = rng.choice(LENGTHS) if self.odds(0.1) else str(len(body))
        host = rng.choice(HOSTS) if self.odds(0.1) else "127.0.0.1:PORT"
        kinds = ["text/plain", "", "application/json; charset=utf-8", "Application/JSON", *EVIL[:2]]
        kind = rng.choice(kinds) if self.odds(0.1) else "application/json"
        lines = [f"Host: {host}", f"Content-Type: {kind}", f"Content-Length: {length}"]
        while self.odds(0.2):
            lines.insert(rng.randrange(len(lines) + 1), rng.choice([*FIELDS, *lines]))
        if self.odds(0.03):
            lines += ["A: b"] * rng.choice([90, 200, 5000])
        if self.odds(0.08):
            del lines[rng.randrange(len(lines))]
        end = rng.choice(["\n", "\r", "\r\n\r\n", "\n\r"]) if self.odds(0.04) else "\r\n"
        text = end.join([" ".join([method, target, version]), *lines, "", ""])
        return text.encode("latin-1", "replace") + body

    def _body(self) -> bytes:
        rng = self.rng
        if self.odds(0.05):
            chunks = b"5\r\nhello\r\n0\r\n\r\n"
            return rng.choice([b"", b"[" * 90_000, b"NaN", b"\xff", b"{" * 9, chunks])
        asked = {
            **{"model": rng.choice(["tiny-30k", "tiny-1m", self.model()]), "plan": self.plan()},
            **{"machine": rng.choice(MACHINES), "devices": self.whole(), "batch": self.whole()},
            **{"stack": "", "sequence": "", "batch_tokens": "", "text": rng.choice(["{}", *EVIL])},
        }
        for key in rng.sample(list(asked), rng.choice([1, 1, 2, 4])):
            del asked[key]
        times = rng.choice([0, 0, 1, 2])
        return json.dumps(mutated(rng, asked, times, WEIRD)).encode()
