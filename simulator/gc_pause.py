"""Python's search for cycles of objects, which simulating hardly makes and pays a quarter for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Meanwhile nobody looks for cycles: predicting makes few of them, and no end of objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
