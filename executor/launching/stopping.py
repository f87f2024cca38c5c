"""Ending a training run early: asked for by a signal, at a step that all ranks agree on.

Every rank gets the signal (Ctrl-C reaches a terminal's processes, a launcher its ranks), but not
all in the same step. The first that notices names a step far enough ahead that the others, which no
step leaves behind, have noticed too; the first name counts. Nothing is exchanged until then.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from executor.launching.rank_processes import RankProcess
from topologies.exit_status import ExitStatus

Agree = Callable[[int], int]
AHEAD_S = 0.5  # within which every rank has the signal
LEAST_AHEAD = 2  # steps: one that others may be in already, and one that all know to be the last
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Slurm's warning is what one asks it for
SAME_S = 1.0  # two signals within it are one request, from a terminal and from a launcher


class StopRequest:
    """Whether this rank was asked to end, by the signal `number`, and the last step, once the ranks
    agreed on it."""

    def __init__(self, agree: Agree) -> None:
        self._agree = agree
        self._asked_s: float | None = None
        self._last: int | None = None
        self.number = 0

    def ask(self, number: int = 0, _: object = None) -> None:
        """Ask for the end, as the handler of a signal; a later signal ends this process."""
        now = time.monotonic()
        if self._asked_s is not None and now - self._asked_s > SAME_S:
            os._exit(ExitStatus.SIGNALLED + number)
        if self._asked_s is None:
            self._asked_s, self.number = now, number

    def last_step(self, done: int, step_s: float) -> int | None:
        """The last step of the run, known after step `done`, which took `step_s`; None as long as
        nobody asked for an end."""
        if self._last is None and self._asked_s is not None:
            ahead = max(LEAST_AHEAD, math.ceil(AHEAD_S / max(step_s, 1e-6)))
            self._last = self._agree(done + ahead)
        return self._last


@contextmanager
def stopped_by(signals: Sequence[signal.Signals], agree: Agree) -> Iterator[StopRequest]:
    """A request that the signals make for as long as the with statement lasts."""
    request = StopRequest(agree)
    if threading.current_thread() is not threading.main_thread():  # where none can be handled
        yield request
        return
    before = [(number, signal.signal(number, request.ask)) for number in signals]
    try:
        yield request
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def passed_on(ranks: Sequence[RankProcess], announce: Callable[[], None]) -> Iterator[None]:
    """Pass the first signal of `ENDS` on to ranks that train, and announce it; before their first
    step, and the second time, it ends this process as it would have without them."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not ranks or ranks[0].step is None:
            _end_by(number, before[signal.Signals(number)], frame)
        asked = True
        for each in ranks:
            each.process.send_signal(number)
        announce()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in ENDS}
    for each in ENDS:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end_by(number: int, handler: Any, frame: FrameType | None) -> NoReturn:
    if callable(handler):
        handler(number, frame)
    raise SystemExit(ExitStatus.SIGNALLED + number)
