"""Progress on stderr: a line that moves in a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

EVERY_S = 30.0


class Ticker:
    """Shows the latest message; where stderr is no terminal, one line every 30 seconds."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = time.monotonic() - EVERY_S

    def __enter__(self) -> Ticker:
        return self

    def __call__(self, message: str) -> None:
        """Show a message."""
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{message}")
            sys.stderr.flush()
        elif time.monotonic() - self._said >= EVERY_S:
            self._said = time.monotonic()
            sys.stderr.write(f"{message}\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
