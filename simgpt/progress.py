"""Progress on stderr: a line that moves in a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from simgpt.stderr import tell
from topologies.files.printable import MOST_WORD, shown
from topologies.records import record

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 30.0
LOOK_S = 1.0


@record
class Work:
    """How much `of` some work was `done` at its last message; when the first message of it came,
    in seconds, that much of it was done `before`: a sweep that goes on has rows from earlier."""

    begun: float = 0.0
    before: float = 0.0
    done: float = 0.0
    of: int | None = None

    def at(self, now: float, done: float, of: int | None) -> Work:
        """The work after one more message: another one where its amount differs, or less is done
        than was."""
        if of != self.of or done < self.done:
            return Work(now, done, done, of)
        return replace(self, done=done)

    def left_s(self, now: float) -> float | None:
        """The seconds that the rest takes at the pace since the first message; None where that is
        not known, or all is done.

        >>> Work(begun=0.0, before=10, done=30, of=90).left_s(now=5.0)
        15.0
        """
        if self.of is None or not self.before < self.done < self.of:
            return None
        return (now - self.begun) / (self.done - self.before) * (self.of - self.done)


class Ticker:
    """Shows the latest message; where stderr is no terminal, one line every 30 seconds, whether or
    not there is another message by then."""

    def __init__(self) -> None:
        self._shown = _progress() if sys.stderr is not None and sys.stderr.isatty() else None
        self._begun = self._said = time.monotonic()
        self._message = self._repeated = ""
        self._work, self._ends = Work(), math.inf
        self._over = threading.Event()
        self._saying = threading.Lock()
        self._repeater = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Ticker:
        if self._shown is not None:
            self._shown.start()
        else:
            self._repeater.start()
        return self

    def __call__(
        self,
        message: str,
        *,
        done: float = 0,
        of: int | None = None,
        share: float | None = None,
        at_most_s: float = math.inf,
    ) -> None:
        """Show a message, and how much of the work is done: `done` pieces `of` so many, or the
        `share` that the message tells itself. All ends after `at_most_s` seconds more."""
        message, now = shown(message, MOST_WORD), time.monotonic()
        whole = of if share is None else 1
        self._work = self._work.at(now, done if share is None else share, whole)
        self._ends = now + at_most_s
        if self._shown is not None:
            left = "" if share is None and at_most_s == math.inf else self._left(now)
            task, text = self._shown.task_ids[0], f"{message}{left}"
            self._shown.update(task, description=text, completed=done, total=of, visible=True)
        else:
            self._message = message if of is None else f"{message}: {done:,} of {of:,}"
            self._say()

    def _left(self, now: float) -> str:
        """How long the work still takes, as the end of a line; nothing where that is not known."""
        left_s, most_s = self._work.left_s(now), max(self._ends - now, 0.0)
        if left_s is not None and left_s <= most_s:
            return f", about {duration(left_s)} left"
        return f", at most {duration(most_s)} left" if most_s < math.inf else ""

    def _repeat(self) -> None:
        while not self._over.wait(LOOK_S):
            self._say()

    def _say(self) -> None:
        """Say the message if it is time to; one that is said again, with how long all took."""
        if not self._message or not self._saying.acquire(blocking=False):
            return
        try:
            now = time.monotonic()
            if now - self._said >= EVERY_S:
                again = f" after {now - self._begun:.0f} s" * (self._message == self._repeated)
                tell(f"{self._message}{again}{self._left(now)}")
                self._said, self._repeated = now, self._message
        finally:
            self._saying.release()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._shown is not None:
            self._shown.stop()


def duration(seconds: float) -> str:
    """A time to wait, as one would say it.

    >>> duration(42.3), duration(600), duration(8000)
    ('42 s', '10 min', '2.2 h')
    """
    for unit, size in (("s", 1), ("min", 60)):
        if seconds < 99.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h"


def _progress() -> Progress:
    """A spinner and a message, and a bar where it is known how much there is to do."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        Task,
        TextColumn,
    )
    from rich.progress import TimeRemainingColumn as Left
    from rich.text import Text

    class Done(MofNCompleteColumn):
        """How much of it, where it is known how much there is."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        Done(),
        Left(compact=True, elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        speed_estimate_period=math.inf,  # pieces may take longer than the usual 30 s
    )
    shown.add_task("", total=None, visible=False)
    return shown
