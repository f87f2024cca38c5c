"""Where the address space is limited: numpy's library for matrices ends the process, with words and
a status of its own, if it does not get its buffers."""

from __future__ import annotations

import os
import resource
import signal
import sys

LONGEST_S = 60


def take_room_for_matrices() -> None:
    """Have numpy take its buffers now, or raise a MemoryError, where the address space is limited.

    Whether it gets them shows in a child, which has as much room as this process.
    """
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if not is_limited or "numpy" in sys.modules:  # whose threads no child would have
        return
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            raise MemoryError
        _multiply()
        return
    try:
        signal.alarm(LONGEST_S)  # a library that waits for a thread it did not get ends too
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _multiply()
        os._exit(os.EX_OK)
    finally:
        os._exit(os.EX_OSERR)


def _multiply() -> None:
    import numpy as np

    square = np.eye(256)
    np.linalg.inv(square @ square)
