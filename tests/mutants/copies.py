"""Copies of the checkout that mutations are put into; the checkout itself is only read."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutation import Mutation

_numbers = itertools.count(1)


def files_of(root: Path) -> list[str]:
    """The files git knows or would add, as they lie in the folder; from `root`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def copy(root: Path, files: list[str], to: Path) -> None:
    """Put `files` of `root` into the new folder `to`."""
    for name in files:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)


@contextmanager
def mutated(root: Path, mutation: Mutation) -> Iterator[None]:
    """Have the copy at `root` hold the mutation for a while.

    Python tells compiled files from stale ones by whole seconds and size, so every mutation gives
    its file a time of its own.
    """
    path = root / mutation.file
    before, when = path.read_bytes(), path.stat().st_mtime
    path.write_text(before.decode().replace(mutation.old, mutation.new), encoding="utf-8")
    os.utime(path, (when + 1000 + next(_numbers),) * 2)
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, (when, when))
