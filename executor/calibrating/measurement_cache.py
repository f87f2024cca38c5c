"""Measurements kept between runs: JSON files, each with its digest beside it.

A file that does not have its digest was cut off, changed or never finished, and counts as damaged;
so does one that somebody else can have written. They lie where all results do
(`topologies/files/cache_folder.py`); where nothing is to be kept, in a folder that is removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor.errors import LaunchError
from topologies.errors import OutputError, SimgptError
from topologies.files.cache_folder import (
    ForeignError,
    cache_folder,
    foreign,
    is_off,
    make_private,
    open_own,
)
from topologies.files.locking import locked
from topologies.files.reading import UserFile
from topologies.files.writing import write_whole

DAY_S = 86_400.0  # no op takes as long


class DamagedError(SimgptError):
    """A kept file is not what was written, or may not be; the message says how."""


_FILE = UserFile("kept measurement", DamagedError, most_bytes=1 << 26)
_DIGEST_BYTES = 64


@contextmanager
def measurements_folder(announce: Callable[[str], None]) -> Iterator[Path]:
    """Where measurements of this machine are kept; `announce` hears if they are not."""
    folder = cache_folder()
    if folder is not None and not (why := foreign(folder)):
        yield folder
        return
    if folder is None:
        why = "SIMGPT_CACHE is off" if is_off() else "there is no home folder"
    announce(f"{why}: what is measured now is not kept, and nothing that is kept is used")
    with tempfile.TemporaryDirectory(prefix="simgpt-") as name:
        yield Path(name)


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
        make_private(path.parent)
        lock, _ = locked(path.with_suffix(".lock"), waits=True)
    except OSError as error:
        raise LaunchError(
            f"cannot keep a calibration in {path.parent}: its lock: {error.strerror}; set "
            "SIMGPT_CACHE to a folder that can be written, or give -m FILE or --no-predict"
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def kept(path: Path) -> Any:
    """The document that was kept under this path; None if none was. Raises DamagedError."""
    if not os.path.lexists(path):
        return None
    try:
        content = _content(path, _FILE.most_bytes)
        digest = _content(_digest_of(path), _DIGEST_BYTES).decode("ascii")
        if hashlib.sha256(content).hexdigest() != digest:
            raise DamagedError("is damaged")
        return _FILE.parsed(content.decode(), path.name)
    except ForeignError as error:
        raise DamagedError(f"is not believed, for {error}") from None
    except (OSError, ValueError, DamagedError):
        raise DamagedError("is damaged") from None


def kept_seconds(path: Path) -> dict[str, float]:
    """The seconds by name that were kept under this path. Raises DamagedError."""
    found = kept(path)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(map(_is_duration, found.values())):
        raise DamagedError("is damaged")
    return found


def _is_duration(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and 0 < value < DAY_S


def _content(path: Path, most: int) -> bytes:
    with open(open_own(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise DamagedError("is damaged")
    return content


def keep(path: Path, document: Any) -> None:
    """Keep a JSON document under this path; what is no file there is moved aside."""
    content = json.dumps(document, allow_nan=False)
    digest = hashlib.sha256(content.encode()).hexdigest()
    try:
        make_private(path.parent)
        for file, text in ((path, content), (_digest_of(path), digest)):
            if os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode):
                file.rename(file.with_name(f"{file.name}.{os.getpid()}.aside"))
            write_whole(file, text, private=True)
    except OutputError as error:
        raise LaunchError(str(error)) from None
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror}") from None


def _digest_of(path: Path) -> Path:
    return path.with_suffix(".sha256")
