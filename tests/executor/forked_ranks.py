"""Ranks that are forked from one server, which has imported torch already.

Importing it takes a rank longer than training for a few steps. What a rank does is that which
`python -m executor.worker` does; `test_launch.py` and others have it started by that command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.reduction import DupFd
from types import SimpleNamespace
from typing import IO, Any

import pytest

from tests.executor import ranks

COMMAND = [sys.executable, "-m", "executor.worker"]
STARTER = "executor.launching.rank_processes.subprocess"
NAME = "rank "


@contextmanager
def forked() -> Iterator[None]:
    """Have `launch` fork its ranks."""
    assert ranks.PRELOADED, "they are forked from the server of all ranks of tests"
    names = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(STARTER, SimpleNamespace(Popen=ForkedRank, **names))
        yield


def running() -> dict[int, int]:
    """Process ids of the ranks that were forked and run, by rank."""
    forks = multiprocessing.active_children()
    return {
        int(each.name.removeprefix(NAME)): each.pid
        for each in forks
        if each.name.startswith(NAME) and each.pid is not None
    }


class ForkedRank:
    """As much of a `subprocess.Popen` as is asked of a rank's."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        stderr: IO[bytes],
        pass_fds: Sequence[int],
        **pipes: int,
    ) -> None:
        del pass_fds  # what its parent holds, it holds as long
        assert words[: len(COMMAND)] == COMMAND
        assert set(pipes.values()) == {subprocess.PIPE}
        context = multiprocessing.get_context("forkserver")
        read, written = os.pipe(), os.pipe()
        files = [_Inherited(fd) for fd in (read[0], written[1], stderr.fileno())]
        about = list(words[len(COMMAND) :]), dict(env), os.getcwd(), files
        self._process = context.Process(target=_work, args=about, name=f"{NAME}{words[-3]}")
        self._process.start()
        for fd in (read[0], written[1]):
            os.close(fd)
        self.stdin, self.stdout = os.fdopen(read[1], "wb"), os.fdopen(written[0], "rb")

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, what: int) -> None:
        """Send it a signal while it runs."""
        if self.returncode is None:
            # One that ended just now may be gone before its server says how, as `Popen` allows for.
            with suppress(ProcessLookupError):
                os.kill(self.pid, what)


class _Inherited:
    """An open file that goes along with what a forked process is told."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (DupFd(self.fd),)


def _detached(held: Any) -> int:
    return int(held.detach())


def _work(words: list[str], env: dict[str, str], folder: str, files: list[int]) -> None:
    from executor import worker

    for own, inherited in enumerate(files):
        os.dup2(inherited, own)
        os.close(inherited)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = ["executor.worker", *words]
    sys.exit(worker.main())
