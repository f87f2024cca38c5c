"""One run at a time saves into a folder: it holds the folder's lock from before it reads what is
there until its last process is gone. Free of torch.

What starts the ranks holds it under `simgpt run`, over all restarts, and its ranks inherit it: if
their parent is killed, the folder is not free before they have ended too. Under torchrun and srun
rank 0 holds it; a job that is started again finds it free, for its earlier processes are gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from executor.checkpoints.errors import CheckpointError
from executor.checkpoints.folder import clear_drafts, made
from topologies.files.locking import locked
from topologies.files.printable import path_shown

LOCK = ".lock"
PATIENCE_S = 2.0  # for the ranks of a run whose parent was killed to end
POLL_S = 0.05


@contextmanager
def owned(folder: Path, note: Callable[[str], None]) -> Iterator[tuple[int, bool]]:
    """Hold a folder, which is made if need be, for as long as the with statement lasts: gives the
    lock's descriptor, and whether it is locked, for some file systems have no locks.

    A CheckpointError says that another run holds it. What killed runs left half written goes at the
    beginning and at the end, where no other run can be writing it.
    """
    made(folder)
    try:
        descriptor, is_locked = _awaited(folder / LOCK)
    except BlockingIOError:
        raise CheckpointError(
            f"another run is saving into {path_shown(folder)}; wait for it, or name another folder"
        ) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CheckpointError(f"cannot save into {path_shown(folder)}: {LOCK}: {why}") from None
    try:
        if is_locked:
            clear_drafts(folder)
        else:
            note(
                f"the file system of {path_shown(folder)} has no locks: let no other run save there"
            )
        yield descriptor, is_locked
    finally:
        if is_locked:
            clear_drafts(folder)
        os.close(descriptor)


def _awaited(path: Path) -> tuple[int, bool]:
    """The lock, once a run that is ending has let go of it; a BlockingIOError if it does not."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return locked(path)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(POLL_S)
