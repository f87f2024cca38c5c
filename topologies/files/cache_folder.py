"""Where results and measurements are kept from one run to the next, and which of them are believed.

`SIMGPT_CACHE` is a folder, or `off`; without it, `simgpt` in `$XDG_CACHE_HOME` or, where that is
no absolute path, in `~/.cache`. What somebody else can have written is not believed: as OpenSSH
does with its keys, a folder or a file counts only if it belongs to the user or to root, and if
neither a group nor others may write into it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from topologies.files.printable import path_shown
from topologies.files.reading import open_regular

VARIABLE, OFF = "SIMGPT_CACHE", "off"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class ForeignError(OSError):
    """Somebody else can have written a file; the message says how."""


class Refused:
    """Why folders and files are not believed that somebody else can have written; a session has
    one."""

    def __init__(self) -> None:
        self.reasons: dict[str, None] = {}  # in order, each once

    def add(self, why: str) -> None:
        """Note a reason."""
        self.reasons[why] = None


def cache_folder() -> Path | None:
    """The folder of what is kept, which need not exist; None where nothing is to be kept."""
    if is_off():
        return None
    if given := os.environ.get(VARIABLE, ""):
        return Path(given)
    for home in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(home):
            return Path(home) / "simgpt"
    return None


def is_off() -> bool:
    """Whether the user wants nothing kept."""
    return os.environ.get(VARIABLE, "") == OFF


def foreign(folder: Path) -> str:
    """Why what lies in a folder may be somebody else's; empty if it may not, or does not exist."""
    try:
        return _foreign(folder, os.stat(folder))
    except (OSError, ValueError):
        return ""


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, that its user alone may enter, where there are none."""
    for each in reversed([folder, *folder.parents]):
        if not each.is_dir():
            each.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def open_own(path: Path) -> int:
    """A descriptor to read a regular file that nobody but the user or root can have written, or an
    OSError: a ForeignError if somebody else can. No link is followed."""
    descriptor = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    if why := _foreign(path, os.fstat(descriptor)):
        os.close(descriptor)
        raise ForeignError(why)
    return descriptor


def check_own(path: Path) -> None:
    """Raise an OSError unless `open_own` would open a file."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    if why := _foreign(path, found):
        raise ForeignError(why)


def _foreign(path: Path, found: os.stat_result) -> str:
    if found.st_uid not in (0, os.geteuid()):
        return f"{path_shown(path)} belongs to another user"
    if found.st_mode & _OF_OTHERS:
        return f"others can write into {path_shown(path)}"
    return ""
