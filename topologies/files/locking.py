"""A file of a folder that one holder at a time may have.

The lock is the system's own (flock): it goes with the last process that has the descriptor open,
however that process ends, so none is ever left behind by a kill. Processes that inherit the
descriptor hold the lock too. No process that only asks changes the file or follows a link to it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from topologies.files.reading import open_regular


def locked(path: Path, *, waits: bool = False) -> tuple[int, bool]:
    """A descriptor of the file, made if need be, and whether it is locked: some file systems have
    no locks. Where another holds it, it is waited for or, unless it `waits`, a BlockingIOError; an
    OSError where it cannot be opened.
    """
    try:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.EINVAL, "it is not a regular file but a link", path) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        return descriptor, False
    return descriptor, True
