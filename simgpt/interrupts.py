"""When nobody waits any longer: Ctrl-C, SIGTERM, a terminal that is gone (SIGHUP), or the time that
was given is over."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from simgpt.stderr import tell
from topologies.exit_status import ExitStatus

TIME = signal.SIGURG  # does nothing where it comes too late to be heeded
ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

AGAIN_S = 0.02  # until a signal that came during an import is sent again


@contextmanager
def unwinding() -> Iterator[None]:
    """Signals leave what is done meanwhile through every `with`, so that ranks are stopped and
    folders removed; not in the middle of an import, where a library may catch any exception, or
    print it."""
    before = {}
    for number in ASKED:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        tell(f"simgpt: ended by {signal.Signals(number).name}")
        raise SystemExit(ExitStatus.SIGNALLED + number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class _OverError(BaseException):
    """Leaves what is under way, and its `with` blocks; no error to those between."""


class Patience:
    """How long a command is waited for: `over` is None, then the signal that ended it.

    What `heeded` surrounds ends then and there, once; all else that the command does is finished.
    A second Ctrl-C ends the command as any other.
    """

    def __init__(self, limit_s: float = math.inf) -> None:
        self.over: signal.Signals | None = None
        self._heeded = False
        self._before: dict[signal.Signals, Any] = {}
        self._limit_s, self._ends = limit_s, math.inf
        self._timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), self._time_is_up)
        self._timer.daemon = True

    @property
    def status(self) -> int:
        """The exit status of a command that has no answer yet; 0 if nobody ended it."""
        return 0 if self.over in (None, TIME) else ExitStatus.SIGNALLED + int(self.over or 0)

    @property
    def left_s(self) -> float:
        """The seconds until the time is over; infinite without a limit."""
        return max(self._ends - time.monotonic(), 0.0)

    def __enter__(self) -> Patience:
        """Heed signals, which only the main thread hears of; in another one the time alone counts,
        and is looked at between steps."""
        is_main = threading.current_thread() is threading.main_thread()
        for number in (*ASKED, TIME) if is_main else ():
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # as nohup leaves it
            self._before[number] = signal.signal(number, self._end)
        self._ends = time.monotonic() + self._limit_s
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """What is done meanwhile ends with the patience."""
        try:
            try:
                self._heeded = True
                yield
            finally:
                self._heeded = False
        except _OverError:  # which may come as late as there
            pass

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.over is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.over = signal.Signals(number)
        if self._heeded:
            raise _OverError

    def _time_is_up(self) -> None:
        if not self._before:
            self.over = TIME
            return
        thread = threading.main_thread().ident
        assert thread is not None
        signal.pthread_kill(thread, TIME)
