"""The server of the page during a fuzz run, and what is wrong with how it takes a request."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tests.simgpt.fuzz.child import Said
from tests.simgpt.fuzz.draw import Draw
from tests.simgpt.fuzz.requests import ENDS, REQUEST
from tests.simgpt.fuzz.values import MARK
from tests.simgpt.serve.raw import Got, request, sent, unguarded

STATUSES = {200, 400, 403, 404, 408, 411, 413, 414, 415, 431, 501, 503, 505}
LATE_S = 1.0  # for what never is whole, which takes ten seconds else
CODE = f"""
from simgpt.commands.serve import connections
from simgpt.cli import main
connections.LONGEST_S.update(dict.fromkeys(connections.LONGEST_S, {LATE_S}))
main()
"""


class Page:
    """`simgpt serve`, started when first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, as long as the server
        self._port, self._token, self._seen = 0, "", 0

    def ask(self, draw: Draw) -> Said:
        """Send a drawn request; `raised` says what is wrong with how it ends."""
        if self._process is None:
            self._start()
        begun = time.monotonic()
        wrong = next(filter(None, self._wrongs(draw)), "")
        return Said(0, "", "", wrong, time.monotonic() - begun)

    def end(self) -> None:
        """Stop the server; no other is started."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None
        self._stderr.close()

    def _start(self) -> None:
        root = Path(__file__).resolve().parents[3]
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE, "serve"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        assert self._process.stdout is not None
        address = urlsplit(self._process.stdout.readline().decode().strip())
        self._port, self._token = address.port or 0, address.path.strip("/")
        self._good()
        self._said()

    def _wrongs(self, draw: Draw) -> Iterator[str]:
        content = draw.files[REQUEST]
        assert isinstance(content, bytes)
        content = content.replace(b"TOKEN", self._token.encode())
        content = content.replace(b"PORT", str(self._port).encode())
        try:
            got = sent(self._port, content, ends=ENDS in draw.files)
        except (OSError, AssertionError, ValueError) as error:
            yield f"no reply: {type(error).__name__}: {error}"
        else:
            yield from wrong_with_reply(got)
        yield self._said()
        try:
            yield "" if self._good() else "the next question has no answer"
        except (OSError, AssertionError) as error:
            yield f"the next question has no reply: {type(error).__name__}"

    def _said(self) -> str:
        """What the server's terminal shows since it was last looked at."""
        found = os.pread(self._stderr.fileno(), 2**20, self._seen)
        self._seen += len(found)
        return f"its terminal shows {found[-200:]!r}" if found else ""

    def _good(self) -> bool:
        """Whether a question is answered."""
        fields = [
            ("Host", f"127.0.0.1:{self._port}"),
            ("Content-Type", "application/json"),
            ("Content-Length", "2"),
        ]
        asked = request(f"POST /{self._token}/choices HTTP/1.1", fields, b"{}")
        return sent(self._port, asked).status == 200


def wrong_with_reply(got: Got) -> Iterator[str]:
    """What is wrong with a reply."""
    if got.status not in STATUSES:
        yield f"status {got.status}"
    if lacks := unguarded(got):
        yield f"a reply of {got.status} lacks {', '.join(lacks)}"
    if got.status != 200 and MARK.encode() in got.body:
        yield f"a reply of {got.status} repeats what was sent"
