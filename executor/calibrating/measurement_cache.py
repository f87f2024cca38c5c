"""Measurements kept between runs: JSON files, each with its digest beside it.

A file that does not have its digest was cut off, changed or never finished, and counts as damaged.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor.errors import LaunchError
from topologies.errors import OutputError
from topologies.files.writing import write_whole

MOST_BYTES = 1 << 26


class DamagedError(Exception):
    """A kept file is not what was written."""


def folder() -> Path:
    """Where measurements of this machine are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "simgpt"


def code_digest() -> str:
    """A digest of the code that is measured and that measures: another is another measurement."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock beside a file of the cache; the system frees it should this process die."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise LaunchError(
            f"cannot keep a calibration in {path.parent}: {error.strerror}; set XDG_CACHE_HOME to "
            "a folder that can be written, or give -m FILE or --no-predict"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept(path: Path) -> Any:
    """The document that was kept under this path; None if none was. Raises DamagedError."""
    if not os.path.lexists(path):
        return None
    try:
        content, digest = _content(path), _content(_digest_of(path)).decode("ascii")
        if hashlib.sha256(content).hexdigest() != digest:
            raise DamagedError
        return json.loads(content)
    except (OSError, ValueError):
        raise DamagedError from None


def _content(path: Path) -> bytes:
    if not path.is_file():  # a FIFO would keep its reader waiting
        raise DamagedError
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def keep(path: Path, document: Any) -> None:
    """Keep a JSON document under this path; what is no file there is moved aside."""
    content = json.dumps(document, allow_nan=False)
    digest = hashlib.sha256(content.encode()).hexdigest()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file, text in ((path, content), (_digest_of(path), digest)):
            if os.path.lexists(file) and not file.is_file():
                file.rename(file.with_name(f"{file.name}.{os.getpid()}.aside"))
            write_whole(file, text)
    except OutputError as error:
        raise LaunchError(str(error)) from None
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror}") from None


def _digest_of(path: Path) -> Path:
    return path.with_suffix(".sha256")
