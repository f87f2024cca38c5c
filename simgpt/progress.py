"""Progress on stderr: a line that moves in a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 30.0


class Ticker:
    """Shows the latest message; where stderr is no terminal, one line every 30 seconds."""

    def __init__(self) -> None:
        self._shown = _progress() if sys.stderr.isatty() else None
        self._said = time.monotonic()

    def __enter__(self) -> Ticker:
        if self._shown is not None:
            self._shown.start()
        return self

    def __call__(self, message: str, *, done: int = 0, of: int | None = None) -> None:
        """Show a message, and how much of the work is done."""
        if self._shown is not None:
            task = self._shown.task_ids[0]
            self._shown.update(task, description=message, completed=done, total=of, visible=True)
        elif time.monotonic() - self._said >= EVERY_S:
            self._said = time.monotonic()
            share = "" if of is None else f": {done:,} of {of:,}"
            sys.stderr.write(f"{message}{share}\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown.stop()


def _progress() -> Progress:
    """A spinner and a message, and a bar where it is known how much there is to do."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Left(compact=True, elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    shown.add_task("", total=None, visible=False)
    return shown
