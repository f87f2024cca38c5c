"""Values kept from one run to the next: a file of bytes by key, which is trusted only if whole.

A file begins with `MAGIC`, the digest of all that follows, and the digest of what its values depend
on (its `subject`); then come the number of values, their sizes, their keys, and the values. One
that is cut off, changed, of another subject, or no regular file counts as empty, and so does one
that cannot be read, or that somebody else can have written. Nothing is unpickled or evaluated.

Several processes may use one file. Each writes a draft and renames it over the file, so readers see
a whole one, old or new. A process that writes first adds what others have written since; of two
that do so at the same moment, the values of one are lost and will be computed again.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from topologies.files.cache_folder import PRIVATE_FILE, ForeignError, make_private, open_own

MAGIC = b"simgpt\x00\x01"
SIZE = 32  # bytes of a digest, and of a key
MOST_FILE_BYTES = 1 << 22
MOST_BYTES, MOST_FILES = 1 << 26, 512  # of all files in the folder
_NUMBER = np.dtype("<i8")
_OWN_NAME = re.compile(r"[0-9a-f]{64}\.values|\.[0-9a-f]{64}\.values-[0-9a-f]{16}")
_HEAD = len(MAGIC) + 2 * SIZE + _NUMBER.itemsize
_OVERHEAD = SIZE + _NUMBER.itemsize  # of a value, beside itself


def digest_of(*parts: bytes) -> bytes:
    """A digest of parts, as keys and subjects are; other lengths of the parts give another one."""
    digest = blake2b(repr([len(part) for part in parts]).encode(), digest_size=SIZE)
    for part in parts:
        digest.update(part)
    return digest.digest()


class KeptValues:
    """The values of one subject, read when first asked for; new ones reach the file by `save`.

    `refuse` hears why a file is not believed that somebody else can have written.
    """

    def __init__(
        self, folder: Path, subject: bytes, refuse: Callable[[str], None] = lambda _: None
    ) -> None:
        self._refuse = refuse
        self._path = folder / f"{subject.hex()}.values"
        self._subject = subject
        self._values: dict[bytes, bytes] = {}  # the oldest first
        self._size = 0
        self._has_new = False
        self._file: tuple[int, int] | None = None  # the one read or written last

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if none is kept. Looks whether others have written since."""
        if key not in self._values:
            self._look()
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value from now on, in place of the oldest ones where there is no room."""
        self._add({key: value})
        self._has_new = True

    def save(self) -> None:
        """Write the file anew if there are new values; where that fails, it stays as it is."""
        if not self._has_new:
            return
        with suppress(OSError):
            make_private(self._path.parent)
            self._look()
            _replace(self._path, _content(self._subject, self._values))
            self._file = _identity(os.stat(self._path))
            _remove_oldest(self._path)
        self._has_new = False

    def _look(self) -> None:
        """Take over the file's values, if it is another one than was read or written last."""
        try:
            with open(open_own(self._path), "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_size > 2 * MOST_FILE_BYTES or _identity(found) == self._file:
                    return
                data = file.read(found.st_size)
                with suppress(OSError):
                    os.utime(file.fileno())  # the files not used for longest are removed first
        except ForeignError as error:
            self._refuse(str(error))
            return
        except OSError:
            return
        self._file = _identity(found)
        own, self._values, self._size = self._values, {}, 0
        self._add(_values(self._subject, data) | own)

    def _add(self, values: dict[bytes, bytes]) -> None:
        for key, value in values.items():
            self._size += len(value) - len(self._values.pop(key, b""))
            self._values[key] = value
        while self._size + len(self._values) * _OVERHEAD > MOST_FILE_BYTES - _HEAD:
            oldest = next(iter(self._values))
            self._size -= len(self._values.pop(oldest))


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_size


def _content(subject: bytes, values: dict[bytes, bytes]) -> bytes:
    sizes = np.array([len(values), *map(len, values.values())], dtype=_NUMBER)
    body = b"".join((subject, sizes.tobytes(), *values, *values.values()))
    return MAGIC + digest_of(body) + body


def _values(subject: bytes, data: bytes) -> dict[bytes, bytes]:
    """The values in the content of a file; none, if it is not as it was written."""
    body = data[len(MAGIC) + SIZE :]
    if data[: len(MAGIC) + SIZE] != MAGIC + digest_of(body) or body[:SIZE] != subject:
        return {}
    start = SIZE + _NUMBER.itemsize
    count = int.from_bytes(body[SIZE:start], "little")
    if count * _OVERHEAD > len(body):
        return {}
    key, values = start + count * _NUMBER.itemsize, {}
    value = key + count * SIZE
    sizes = np.frombuffer(body, _NUMBER, count, start).tolist()
    if min(sizes, default=0) < 0 or value + sum(sizes) != len(body):
        return {}
    for size in sizes:
        values[body[key : key + SIZE]] = body[value : value + size]
        key, value = key + SIZE, value + size
    return values


def _replace(path: Path, data: bytes) -> None:
    """Put a whole file where another one may be. It need not reach the disk: a digest guards it."""
    draft = path.parent / f".{path.name}-{secrets.token_hex(8)}"
    try:
        with open(draft, "xb") as file:
            os.chmod(file.fileno(), PRIVATE_FILE)
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _remove_oldest(kept: Path) -> None:
    """Remove the files that were not used for longest, drafts of dead processes among them, until
    they are within their bounds. Files that others put there are left alone."""
    with os.scandir(kept.parent) as entries:
        own = [entry for entry in entries if _OWN_NAME.fullmatch(entry.name)]
    found = [(entry.stat(follow_symlinks=False), entry.path) for entry in own]
    others = sorted((at.st_mtime, at.st_size, path) for at, path in found if path != str(kept))
    total, count = sum(at.st_size for at, _ in found), len(found)
    for _, size, path in others:
        if total <= MOST_BYTES and count <= MOST_FILES:
            return
        with suppress(OSError):
            os.unlink(path)
        total, count = total - size, count - 1
