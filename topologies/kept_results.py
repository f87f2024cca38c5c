"""Results that a session finds from earlier runs, and keeps for later ones, in a database.

The key of a result is the digest of all that it depends on, the code of this package and the
release of numpy among it. Beside a result stands a digest of both, so no changed byte is believed.
A database that is damaged, or that somebody else can have written, is begun anew; where it cannot
be read or written, or is busy for long, results are computed.

SQLite's rollback journal is used: its write-ahead log is in memory, which the hosts of a network
file system do not share. Nothing waits for the disk: what a power failure leaves half written has
a wrong digest. A connection lasts for one call, so none crosses a fork.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topologies.files.cache_folder import (
    PRIVATE_FILE,
    ForeignError,
    Refused,
    cache_folder,
    check_own,
    foreign,
    make_private,
)
from topologies.session import current_session, is_in_session

if TYPE_CHECKING:
    from sqlite3 import Connection, Error

NAME = "results.sqlite"
MOST_BYTES = 1 << 26  # of the database; beyond it the older half of the results goes
MOST_NEW_BYTES = 1 << 22  # in memory
_BUSY_S = 2.0
_TABLE = "CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, value BLOB, digest BLOB)"
_BYTES = """SELECT (page_count - freelist_count) * page_size
    FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""
_TRIM = "DELETE FROM kept WHERE rowid < (SELECT (min(rowid) + max(rowid)) / 2 FROM kept)"


class KeptResults:
    """The results of a session by key; new ones reach the database by `save`."""

    def __init__(self) -> None:
        self._new: dict[bytes, bytes] = {}
        self._new_bytes = 0
        self._is_readable = True

    def get(self, key: bytes) -> bytes | None:
        """The result of a key; None if none is kept."""
        path = database_path()
        if key in self._new or path is None or not self._is_readable:
            return self._new.get(key)
        import sqlite3

        try:
            _check(path)
            with closing(_opened(path)) as database:
                asked = "SELECT value, digest FROM kept WHERE key = ?"
                value, digest = database.execute(asked, (key,)).fetchone() or (b"", b"")
        except FileNotFoundError:
            return None
        except (OSError, sqlite3.Error) as error:
            self._is_readable = False
            if isinstance(error, ForeignError):
                current_session().the(Refused).add(str(error))
            return None
        is_whole = isinstance(value, bytes) and digest == digest_of(key, value)
        return value if is_whole else None

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a result from now on."""
        self._new[key] = value
        self._new_bytes += len(value)
        if self._new_bytes > MOST_NEW_BYTES:
            self.save()
            self._forget()

    def save(self) -> None:
        """Write what is new; where that fails, the database stays as it is."""
        path = database_path() if self._new else None
        if path is None:
            return
        import sqlite3

        rows = [(key, value, digest_of(key, value)) for key, value in self._new.items()]
        with suppress(OSError, sqlite3.Error):
            make_private(path.parent)
            try:
                _make(path)
                _check(path)
                _write(path, rows)
            except (OSError, sqlite3.Error) as error:
                if isinstance(error, sqlite3.Error) and not _is_damage(error):
                    raise
                for each in (*_beside(path), path):
                    each.unlink(missing_ok=True)
                _make(path)
                _write(path, rows)
            self._forget()
            self._is_readable = True

    def _forget(self) -> None:
        self._new.clear()
        self._new_bytes = 0


def kept_results() -> KeptResults | None:
    """The results that the session keeps; None outside sessions, and where nothing is kept."""
    if not is_in_session() or database_path() is None or not code_digest():
        return None
    return current_session().the(KeptResults)


def database_path() -> Path | None:
    """Where results are kept; None where they are not, or others can write into the folder."""
    folder = cache_folder()
    if folder is None:
        return None
    for each in (folder, folder / "results"):
        if why := foreign(each):
            current_session().the(Refused).add(why)
            return None
    return folder / "results" / NAME


def _check(path: Path) -> None:
    """Raise an OSError unless the database is a regular file that only the user or root can have
    written, with what SQLite reads beside it. No file is opened: closing it would end the locks
    that other threads hold."""
    check_own(path)
    for each in _beside(path):
        with suppress(FileNotFoundError):
            check_own(each)


def _make(path: Path) -> None:
    """Make an empty database, which its user alone may read and write, where there is none."""
    with suppress(FileExistsError):
        os.mknod(path, PRIVATE_FILE | stat.S_IFREG)


def _beside(path: Path) -> list[Path]:
    """What SQLite reads with a database, if it is there."""
    return [Path(f"{path}-{name}") for name in ("journal", "wal", "shm")]


def _write(path: Path, rows: list[tuple[bytes, bytes, bytes]]) -> None:
    with closing(_opened(path)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute(_TABLE)
        database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", rows)
        if database.execute(_BYTES).fetchone()[0] > MOST_BYTES:
            database.execute(_TRIM)
        database.execute("COMMIT")


def _opened(path: Path) -> Connection:
    """A connection to a database that exists, whose content is not trusted."""
    import sqlite3

    uri = f"{path.absolute().as_uri()}?mode=rw"
    database = sqlite3.connect(uri, timeout=_BUSY_S, isolation_level=None, uri=True)
    database.text_factory = bytes
    for rule in ("synchronous=OFF", "trusted_schema=OFF", "cell_size_check=ON"):
        database.execute(f"PRAGMA {rule}")
    return database


def _is_damage(error: Error) -> bool:
    """Whether the file's content caused an error; a table of another shape gives SQLITE_ERROR."""
    import sqlite3

    is_content = not isinstance(error, sqlite3.OperationalError)
    return is_content or error.sqlite_errorcode == sqlite3.SQLITE_ERROR


def key_of(*parts: bytes) -> bytes:
    """The key of a result that depends on these parts, and on the code."""
    return digest_of(code_digest(), *parts)


def digest_of(*parts: bytes) -> bytes:
    """A digest of parts; other lengths of the parts give another one."""
    digest = blake2b(repr([len(part) for part in parts]).encode(), digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()


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
