"""Results that a session finds from earlier runs, and keeps for later ones.

What a result depends on is its subject: a digest of that, of the code of this package and of the
release of numpy names its file. So another machine, another version of simgpt and a changed line of
code have files of their own, and those that are not used any more are the first to be removed.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

from topologies.files.cache_folder import Refused, cache_folder, foreign
from topologies.files.kept_values import KeptValues, digest_of
from topologies.session import current_session, is_in_session

MOST_SUBJECTS = 16  # open at once, at most 4 MB each


class KeptResults:
    """The files of a session, each read when first asked for and saved when the session is left."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, bytes], KeptValues] = {}  # the least recently used first

    def about(self, folder: Path, subject: bytes) -> KeptValues:
        """What is kept about a subject."""
        key, refuse = (folder, subject), current_session().the(Refused).add
        values = self._files.pop(key, None) or KeptValues(folder, subject, refuse)
        self._files[key] = values
        if len(self._files) > MOST_SUBJECTS:
            self._files.pop(next(iter(self._files))).save()
        return values

    def save(self) -> None:
        """Write what is new."""
        for values in self._files.values():
            values.save()


def kept_about(*subject: bytes) -> KeptValues | None:
    """What is kept about a subject; None outside sessions, and where nothing is to be kept or what
    is there cannot be believed."""
    folder = cache_folder() if is_in_session() else None
    if folder is None or not (code := code_digest()):
        return None
    for each in (folder, folder / "results"):
        if why := foreign(each):
            current_session().the(Refused).add(why)
            return None
    return current_session().the(KeptResults).about(folder / "results", digest_of(code, *subject))


@cache
def code_digest() -> bytes:
    """A digest of the code of this package and what else decides about the last bit of a number;
    empty, where the code cannot be read as files."""
    root = Path(__file__).parent
    paths = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(".py")
    )
    try:
        parts = [Path(path).read_bytes() for path in paths]
    except OSError:
        return b""
    return digest_of(np.__version__.encode(), os.uname().machine.encode(), *parts) if parts else b""
