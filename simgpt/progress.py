"""Progress on stderr: a line that moves in a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from simgpt.stderr import tell
from topologies.files.printable import MOST_WORD, shown

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 30.0
LOOK_S = 1.0


class Ticker:
    """Shows the latest message; where stderr is no terminal, one line every 30 seconds, whether or
    not there is another message by then."""

    def __init__(self) -> None:
        self._shown = _progress() if sys.stderr is not None and sys.stderr.isatty() else None
        self._begun = self._said = time.monotonic()
        self._message = self._repeated = ""
        self._over = threading.Event()
        self._saying = threading.Lock()
        self._repeater = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Ticker:
        if self._shown is not None:
            self._shown.start()
        else:
            self._repeater.start()
        return self

    def __call__(self, message: str, *, done: int = 0, of: int | None = None) -> None:
        """Show a message, and how much of the work is done."""
        message = shown(message, MOST_WORD)
        if self._shown is not None:
            task = self._shown.task_ids[0]
            self._shown.update(task, description=message, completed=done, total=of, visible=True)
        else:
            self._message = message if of is None else f"{message}: {done:,} of {of:,}"
            self._say()

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
                tell(f"{self._message}{again}")
                self._said, self._repeated = now, self._message
        finally:
            self._saying.release()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._shown is not None:
            self._shown.stop()


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
    )
    shown.add_task("", total=None, visible=False)
    return shown
