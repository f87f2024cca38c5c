"""The writer of files that leave the program: the new one whole, or the old one."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from tests.messages import names as naming
from topologies.errors import DiskError, OutputError
from topologies.files.writing import write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_anew_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "müde\r\n")
    assert path.read_bytes() == b"m\xc3\xbcde\r\n"
    write_whole(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "kind", "status"),
    [
        (errno.ENOSPC, DiskError, 5),
        (errno.EDQUOT, DiskError, 5),
        (errno.EIO, DiskError, 5),
        (errno.EACCES, OutputError, 2),
        (errno.EROFS, OutputError, 2),
    ],
)
def test_a_disk_that_takes_no_more_leaves_the_earlier_file_whole(
    call: str,
    number: int,
    kind: type[OutputError],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "the earlier page")

    def fails(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"os.{call}", fails)
    with pytest.raises(kind, check=naming("page.html")) as error:
        write_whole(path, "half a p")
    assert (type(error.value), error.value.exit_code) == (kind, status)
    assert path.read_text() == "the earlier page"
    assert names(tmp_path) == ["page.html"]


def test_what_is_written_has_reached_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "a.txt", []
    synced, renamed = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        calls.append(("fsync", os.fstat(descriptor).st_size if is_file else "folder"))
        synced(descriptor)

    def replace(source: Path, target: Path) -> None:
        assert source.parent == target.parent
        calls.append(("replace", target.name))
        renamed(source, target)

    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr("os.replace", replace)
    write_whole(path, "12345")
    assert calls == [("fsync", 5), ("replace", "a.txt"), ("fsync", "folder")]


def test_an_interrupt_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.txt", "1")
    assert names(tmp_path) == []


def test_permissions_are_those_of_an_open_or_of_the_earlier_file(tmp_path: Path) -> None:
    new, earlier = tmp_path / "new", tmp_path / "earlier"
    earlier.write_text("1")
    earlier.chmod(0o604)
    before = os.umask(0o027)
    try:
        write_whole(new, "2")
        write_whole(earlier, "2")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, earlier)] == [0o640, 0o604]
    assert earlier.read_text() == "2"


def test_a_private_file_is_the_users_alone_also_where_the_earlier_one_was_not(
    tmp_path: Path,
) -> None:
    new, earlier = tmp_path / "new", tmp_path / "earlier"
    earlier.write_text("1")
    earlier.chmod(0o644)
    for path in (new, earlier):
        write_whole(path, "2", private=True)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, earlier)] == [0o600, 0o600]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_is_protected_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1")
    path.chmod(0o444)
    with pytest.raises(OutputError, check=naming("a.txt", os.strerror(errno.EACCES))):
        write_whole(path, "2")
    assert path.read_text() == "1"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "file"
    link.symlink_to("folder/file")
    for text in ("new", "newer"):
        write_whole(link, text)
        assert (link.is_symlink(), target.read_text()) == (True, text)
    assert names(tmp_path / "folder") == ["file"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no/a.txt", errno.ENOENT),
        ("file/a.txt", errno.ENOTDIR),
        (".", errno.EISDIR),
        ("fifo", errno.ENXIO),
        ("n" * 300, errno.ENAMETOOLONG),
        ("loop", errno.ELOOP),
    ],
)
def test_a_wrong_name_is_the_users_mistake(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    os.mkfifo("fifo")
    with pytest.raises(OutputError, check=naming(os.strerror(code))) as error:
        write_whole(name, "1")
    assert error.value.exit_code == 2
    assert names(tmp_path) == ["fifo", "file", "loop"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
def test_a_device_is_written_into() -> None:
    write_whole("/dev/null", "1")
    with pytest.raises(DiskError, check=naming("/dev/full", os.strerror(errno.ENOSPC))):
        write_whole("/dev/full", "1")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_pipe_gets_all_of_it(tmp_path: Path) -> None:
    pipe, content, found = tmp_path / "pipe", b"x" * 1_000_000, []
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)  # so that there is a reader, and no end before a writer

    def read() -> None:
        with open(descriptor, "rb") as file:
            found.append(file.read(len(content)))

    reader = threading.Thread(target=read)
    reader.start()
    write_whole(pipe, content)
    reader.join()
    assert found == [content]


WRITE = (
    "import sys; from topologies.files.writing import write_whole; "
    "write_whole(sys.argv[1], 'new\\n')"
)
SHELL = f'{sys.executable} -c "{WRITE}"'


@pytest.mark.parametrize(
    ("command", "content"),
    [
        (f"{SHELL} /dev/stdout >> log", "old\nnew\n"),
        (f"{SHELL} /dev/fd/1 >> log", "old\nnew\n"),
        (f"{SHELL} /proc/self/fd/1 >> log", "old\nnew\n"),
        (f"{SHELL} link >> log", "old\nnew\n"),
        (f"{SHELL} log >> log", "old\nnew\n"),
        (f"{SHELL} other >> log", "old\nnew\n"),
        (f"{SHELL} /dev/stderr 2>> log", "old\nnew\n"),
        (f"{SHELL} /dev/fd/7 7>> log", "old\nnew\n"),
        (f"(echo first; {SHELL} /dev/stdout; echo last) > log", "first\nnew\nlast\n"),
        (f"sleep 9 7>> log & {SHELL} /proc/$!/fd/7; kill $!", "old\nnew\n"),
        (f"{SHELL} log", "new\n"),
    ],
)
def test_what_a_shell_has_put_into_its_stdout_stays_there(
    command: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("old\n")
    (tmp_path / "other").hardlink_to(tmp_path / "log")
    (tmp_path / "link").symlink_to("/dev/stdout")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "log").read_text() == content
    assert names(tmp_path) == ["link", "log", "other"]


def test_a_descriptor_that_is_not_open_is_the_users_mistake() -> None:
    with pytest.raises(OutputError, check=naming("/dev/fd/987", os.strerror(errno.EBADF))):
        write_whole("/dev/fd/987", "1")
