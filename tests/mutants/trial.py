"""Running tests in a copy, always within a time and with nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "SIMGPT_MUTANTS_RUN"  # tells the processes of one run from all others
POLL_S = 0.1
ROUNDS = 50  # for a process that starts others while it is ended
FIRST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
PASSED, FAILED, NO_TESTS = 0, 1, 5


@dataclass(frozen=True)
class Trial:
    """How tests ended: `passed`, `failed`, `timeout`, `broken` (none collected) or `missing`."""

    outcome: str
    first: str = ""  # the first test that failed, or pytest's last line
    seconds: float = 0.0


class Runner:
    """Runs tests in a copy, `scratch` being a folder that no other runner uses."""

    def __init__(self, scratch: Path, stop: threading.Event) -> None:
        self._scratch, self._stop = scratch, stop

    def run(self, root: Path, tests: Sequence[str], timeout_s: float) -> Trial:
        """Run some tests of the copy at `root`, up to the first that fails."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        run = uuid.uuid4().hex
        began = time.monotonic()
        with open(self._scratch / "output", "wb") as output:
            process = subprocess.Popen(
                _command(tests),
                cwd=root,
                env=self._environment(root, run),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = self._awaited(process, began + timeout_s)
        finally:
            _end(process, run)
        text = (self._scratch / "output").read_text(encoding="utf-8", errors="replace")
        return _trial(code, text, time.monotonic() - began)

    def _awaited(self, process: subprocess.Popen[bytes], until: float) -> int | None:
        while process.poll() is None and time.monotonic() < until:
            if self._stop.wait(POLL_S):
                raise KeyboardInterrupt
        return process.poll()

    def _environment(self, root: Path, run: str) -> dict[str, str]:
        """Packages come from the copy, in pytest and in whatever it starts; caches from nowhere."""
        dropped = ("SIMGPT_REWRITE", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return kept | {
            "PYTHONPATH": str(root),
            "OMP_NUM_THREADS": "1",
            "CI": "true",
            "SIMGPT_HYPOTHESIS": "mutants",
            "XDG_CACHE_HOME": str(self._scratch / "cache"),
            "TMPDIR": str(self._scratch),
            MARK: run,
        }


def _command(tests: Sequence[str]) -> list[str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not slow"]
    return [sys.executable, "-m", "pytest", *options, *tests]


def _trial(code: int | None, text: str, seconds: float) -> Trial:
    found = FIRST.search(text)
    lines = text.strip().splitlines() or [""]
    first = found[1] if found else lines[-1][:200]
    if code is None:
        return Trial("timeout", "", seconds)
    if code == PASSED:
        return Trial("passed", "", seconds)
    if code == NO_TESTS or "ERROR: not found" in text or "file or directory not found" in text:
        return Trial("missing", first, seconds)
    return Trial("failed" if code == FAILED else "broken", first, seconds)


def _end(process: subprocess.Popen[bytes], run: str) -> None:
    """End the process, its group, and what of the run has left that group (Linux)."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(ROUNDS):
        left = list(_marked(f"{MARK}={run}".encode()))
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(POLL_S)


def _marked(mark: bytes) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # ended meanwhile, or another user's
            if mark in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)
