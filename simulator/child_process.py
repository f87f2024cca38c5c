"""Child processes: ending with their parent, and heartbeats.

A thread of the child sends a byte at a fixed interval for as long as the process runs, whatever it
computes. A child that was stopped sends none, so that its parent need not wait for ever. On a busy
machine heartbeats are late; so only time in which the parent itself ran counts as silence, and a
child that used any processor time meanwhile counts as running.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from topologies.exit_status import ExitStatus
from topologies.interpreter import apart_from_the_folder

FROZEN_S = 30.0  # of silence, after which a process counts as frozen
BEATS = 30  # in that time
STARTING = 10  # times as long may pass before the first beat: imports from a slow disk


def end_with_the_parent() -> None:
    """See to it that this process ends with the one that started it, busy or not."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(ExitStatus.MACHINE_FAILED)

    threading.Thread(target=watch, daemon=True).start()


def beat(pipe: Connection, frozen_s: float) -> None:
    """Have this process beat into a pipe from now on."""

    def beats() -> None:
        try:
            while True:
                pipe.send_bytes(b".")
                time.sleep(frozen_s / BEATS)
        except OSError:  # nobody listens any more
            return

    threading.Thread(target=beats, daemon=True).start()


class Pulse:
    """The beats of a process as another one hears them, which looks at least as often as it beats.

    The pipe's other end is for the process; `look` is told how long ago the last look was.
    """

    def __init__(self, pipe: Connection, pid: int, frozen_s: float) -> None:
        self.pipe = pipe
        self._pid = pid
        self._frozen_s = frozen_s
        self._patience_s = STARTING * frozen_s
        self._silent_s = 0.0
        self._ran_ticks: int | None = None

    def look(self, passed_s: float) -> bool:
        """Whether the process is frozen."""
        self._silent_s += min(passed_s, 2 * self._frozen_s / BEATS)
        try:
            while self.pipe.poll():
                self.pipe.recv_bytes()
                self._patience_s = self._frozen_s
                self._hear()
        except (EOFError, OSError):
            return False  # it has ended, which is noticed elsewhere
        if self._ran_ticks is None and self._silent_s > self._patience_s / 2:
            self._ran_ticks = ran_ticks(self._pid)
        if self._silent_s > self._patience_s and ran_ticks(self._pid) != self._ran_ticks:
            self._hear()
        return self._silent_s > self._patience_s

    def _hear(self) -> None:
        self._silent_s, self._ran_ticks = 0.0, None


def ran_ticks(pid: int) -> int:
    """How much of the processors' time a process has had, in clock ticks; -1 if nobody says."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


class Watch:
    """Waits for answers of processes, and looks after their pulses meanwhile."""

    def __init__(self, frozen_s: float) -> None:
        self._every_s = frozen_s / BEATS
        self._last = time.monotonic()

    def wait(
        self, pulses: dict[Connection, Pulse], timeout_s: float
    ) -> tuple[list[Connection], list[Connection]]:
        """The pipes of processes that answered, or those of frozen ones; neither if there was no
        answer for so long."""
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            ready = wait(list(pulses), max(min(left, self._every_s), 0))
            now = time.monotonic()
            passed, self._last = now - self._last, now
            frozen = [pipe for pipe, pulse in pulses.items() if pulse.look(passed)]
            if ready or frozen or now >= end:
                answered = [pipe for pipe in ready if isinstance(pipe, Connection)]
                return answered, [pipe for pipe in frozen if pipe not in answered]


@contextmanager
def spawning(deaf_to: Iterable[signal.Signals]) -> Iterator[None]:
    """Processes spawned meanwhile run no code of the user's, and do not hear of some signals.

    They import nothing from the current folder. They do not run the file of `__main__` again, which
    they have no need of: a script without `if __name__ == "__main__"` would ask its question once
    more in each.
    """
    with apart_from_the_folder(), signals_ignored(deaf_to):
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def signals_ignored(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Processes started meanwhile do not hear of some signals, from their first moment on.

    This process hears of them afterwards: in the middle of a start, an interruption would leave a
    process without what it is to do.
    """
    resource_tracker.ensure_running()  # which lets signals through when it starts one
    late: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Blocking them is not enough: another thread may take a signal, and the main one raises.
        for number in signals:
            handlers[number] = signal.signal(number, lambda number, _: late.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for heard in dict.fromkeys(late):
            signal.raise_signal(heard)
