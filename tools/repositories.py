"""Files of clones at a tag, by git."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path


def unpacked(repository: Path, tag: str, folders: Sequence[str], into: Path) -> None:
    """Unpack folders of a tag, of those that it has."""
    known = [folder for folder in folders if _git(repository, "ls-tree", tag, folder)]
    archive = _git(repository, "archive", tag, *known)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        opened.extractall(into, filter="data")


def text_of(repository: Path, tag: str, path: str) -> str | None:
    """A file's text; None where the tag has no such file."""
    if not _git(repository, "ls-tree", tag, path):
        return None
    return _git(repository, "show", f"{tag}:{path}").decode()


def _git(repository: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True)
    return done.stdout
