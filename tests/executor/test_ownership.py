"""One run at a time saves into a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from executor.checkpoints import ownership
from executor.checkpoints.errors import CheckpointError
from executor.checkpoints.folder import SAVING
from executor.checkpoints.ownership import LOCK, owned
from tests.messages import names
from topologies.files.locking import locked

HOLD = """
import subprocess, sys
from pathlib import Path
from executor.checkpoints.ownership import owned
with owned(Path(sys.argv[1]), print) as (descriptor, _):
    child = subprocess.Popen(["sleep", "300"], pass_fds=[descriptor] * int(sys.argv[2]))
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "PATIENCE_S", 0.0)


@pytest.fixture(params=[False, True])
def holder(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[str], int, bool]]:
    """A process that holds the folder, its child, and whether the child inherits the lock."""
    words = [sys.executable, "-c", HOLD, str(tmp_path), str(int(request.param))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process, child, request.param
        process.kill()
        if os.path.exists(f"/proc/{child}"):
            os.kill(child, signal.SIGKILL)


def take(folder: Path) -> None:
    with owned(folder, lambda _: None) as (_, is_locked):
        assert is_locked


def test_a_folder_is_free_once_its_holder_and_all_that_inherit_the_lock_are_gone(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], int, bool]
) -> None:
    process, child, inherits = holder
    with pytest.raises(CheckpointError, check=names(str(tmp_path))):
        take(tmp_path)
    process.kill()
    process.wait()
    if inherits:
        with pytest.raises(CheckpointError, check=names(str(tmp_path))):
            take(tmp_path)
        os.kill(child, signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ownership, "PATIENCE_S", 60.0)
        take(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize(("ends_at_s", "is_free"), [(0.5, True), (1.5, True), (60.0, False)])
def test_a_run_that_is_ending_is_awaited_for_two_seconds(
    ends_at_s: float, is_free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on in sleep alone, at whose time the run lets go of the lock."""
    held, _ = locked(tmp_path / LOCK)
    now_s, holders = 100.0, [held]

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        if holders and now_s >= 100.0 + ends_at_s:
            os.close(holders.pop())

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(ownership, "PATIENCE_S", 2.0)
    monkeypatch.setattr(ownership, "time", clock)
    if is_free:
        take(tmp_path)
        assert now_s == pytest.approx(100.0 + ends_at_s, abs=0.1)
    else:
        with pytest.raises(CheckpointError, check=names(str(tmp_path))):
            take(tmp_path)
        assert now_s == pytest.approx(102.0, abs=0.1)
        os.close(holders.pop())


def test_only_the_owner_removes_drafts(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], int, bool]
) -> None:
    draft = tmp_path / f"{SAVING}x-1"
    draft.mkdir()
    with pytest.raises(CheckpointError):
        take(tmp_path)
    assert draft.exists()
    for pid in (holder[0].pid, holder[1]):
        os.kill(pid, signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ownership, "PATIENCE_S", 60.0)
        take(tmp_path)
    assert not draft.exists()


def test_where_there_are_no_locks_it_is_said_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    draft, notes = tmp_path / f"{SAVING}x-1", list[str]()
    draft.mkdir()
    with owned(tmp_path, notes.append) as (_, is_locked):
        assert not is_locked
    assert draft.exists()
    assert len(notes) == 1
    assert str(tmp_path) in notes[0]


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_regular_file_is_refused_and_left_as_it_is(
    what: str, tmp_path: Path
) -> None:
    folder, target = tmp_path / "run", tmp_path / "precious"
    folder.mkdir()
    target.write_text("precious")
    make: dict[str, Callable[[Path], object]] = {
        "link": lambda at: at.symlink_to(target),
        "pipe": os.mkfifo,
        "folder": os.mkdir,
    }
    make[what](folder / LOCK)
    with pytest.raises(CheckpointError, check=names(str(folder), LOCK)):
        take(folder)
    assert target.read_text() == "precious"
