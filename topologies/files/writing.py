"""The one writer of files that leave the program: the new file stands there whole, or the old one.

What is written goes into a draft beside the file, reaches the disk, and is then renamed over it;
so neither a full disk nor a kill at any moment leaves half a file, or none where one was. A link
stays a link, an existing file keeps its permissions. What is no regular file, such as a pipe,
cannot be replaced and is written into; so is what a descriptor is open on, by the name of
`/dev/stdout` or by its own: what a shell has put into that file stays there.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topologies.errors import DiskError, OutputError
from topologies.files.printable import path_shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISTAKES = (  # names and folders that the user can choose otherwise; all else is the disk's fault
    errno.EACCES,
    errno.EBADF,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENXIO,
    errno.EPERM,
    errno.EROFS,
)
_DESCRIPTORS = re.compile(r"/proc/(\d+)/(?:task/\d+/)?fd")
_PRIVATE = 0o600
_MOST_LINKS = 40  # in a row, as Linux has it


def write_whole(path: str | Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file, all of it or nothing; text in UTF-8. With `private` its user alone may read or
    write it from then on.

    An OutputError names a path that cannot be written (status 2), a DiskError a disk that is full
    or broken (status 5).
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        _write(Path(path), data, private)
    except OSError as error:
        raise failed(path, error) from None


@contextmanager
def piece_by_piece(path: Path, *, append: bool = False) -> Iterator[Callable[[bytes], None]]:
    """What writes a file piece by piece, anew or behind what it has, for as long as the with
    statement lasts; each piece is with the system before the next, so that a program that is killed
    leaves all that it wrote.

    It raises what `write_whole` does. A piece that a full disk took the beginning of is taken back,
    so the next one may be tried; one that goes into a file that was removed is not written.
    """
    with ExitStack() as stack:
        try:
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            how |= 0 if append else os.O_TRUNC
            descriptor = os.open(path, how, 0o666) if is_replaced(path) else _opened(path)
            file = stack.enter_context(open(descriptor, "ab", buffering=0))
        except OSError as error:
            raise failed(path, error) from None

        def write(piece: bytes) -> None:
            found, left = os.fstat(descriptor), memoryview(piece)
            try:
                if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                    raise FileNotFoundError(errno.ENOENT, "it was removed")
                while left:
                    left = left[file.write(left) :]
            except OSError as error:
                if len(left) < len(piece) and stat.S_ISREG(found.st_mode):
                    with suppress(OSError):
                        os.ftruncate(descriptor, found.st_size)
                raise failed(path, error) from None

        yield write


def failed(path: str | Path, error: OSError) -> OutputError:
    """The error that says why a path was not written."""
    kind = OutputError if error.errno in MISTAKES else DiskError
    return kind(f"cannot write {path_shown(path)}: {error.strerror}")


def figure_bytes(figure: Figure, suffix: str, **how: Any) -> bytes:
    """A figure as the content of a file: `suffix` is png, svg or pdf, `how` goes to matplotlib."""
    sink = io.BytesIO()
    figure.savefig(sink, format=suffix, facecolor="white", **how)
    return sink.getvalue()


def is_replaced(path: Path) -> bool:
    """Whether a new file takes the place of what stands there, rather than being written into."""
    return (os.path.isfile(path) or not os.path.exists(path)) and _descriptor(path) is None


def _write(path: Path, data: bytes, private: bool) -> None:
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        found = 0
    if not is_replaced(path):
        with open(_opened(path), "wb") as file:
            file.write(data)
        return
    if found and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    target = Path(os.path.realpath(path))
    draft = target.parent / f".simgpt-{secrets.token_hex(8)}"
    try:
        with open(draft, "xb") as file:
            if found or private:
                os.chmod(draft, _PRIVATE if private else stat.S_IMODE(found))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _opened(path: Path) -> int:
    """A descriptor to write on: a copy of the process's own goes on where the shell's is."""
    own = _descriptor(path)
    if own is not None and own >= 0:
        return os.dup(own)
    # Without a wait for a pipe's reader, and behind what another process has put into a file.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)
    os.set_blocking(descriptor, True)
    return descriptor


def _descriptor(path: Path) -> int | None:
    """The open descriptor that a path means; -1 if it is another process's, None if none is."""
    name = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        folder, last = os.path.split(name)
        folder = os.path.realpath(folder)
        if (found := _DESCRIPTORS.fullmatch(folder)) and last.isdecimal():
            return int(last) if int(found[1]) == os.getpid() else -1
        try:
            name = os.path.join(folder, os.readlink(os.path.join(folder, last)))
        except OSError:
            break
    return next((own for own in (1, 2) if _is_open_on(own, path)), None)


def _is_open_on(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, on file systems that know how."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
