"""A kept calibration is believed only if it is one, and nobody else can have written it."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.calibrating import calibrate as calibration
from executor.calibrating.calibrate import cached
from executor.calibrating.measurement_cache import DamagedError, alone, keep, kept, kept_seconds
from executor.errors import LaunchError
from executor.launching.task_specs import Calibration
from tests.executor import ranks
from tests.messages import assert_names, names
from topologies.machine import Machine, machine_to_dict
from topologies.machine_files import load_machine

TASK = Calibration(precisions=("fp32",), quick=True)
MADE = machine_to_dict(load_machine("perlmutter"))
OTHER = MADE | {"name": "another"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a test, where measuring this machine gives `MADE`."""
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: MADE)
    return tmp_path / "cache"


def asked() -> tuple[Machine, list[str]]:
    said: list[str] = []
    return cached(TASK, 2, lambda _: None, announce=said.append), said


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("host-*.json")
    return path


def unhashed(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


def hashed(document: Any) -> Callable[[Path], object]:
    return lambda path: keep(path, document)


def opened(path: Path) -> None:
    path.chmod(0o666)


DAMAGES = [
    *map(unhashed, ("", "{}", '{"made": NaN}', json.dumps(OTHER), "[" * 100_000)),
    *map(hashed, ({}, [], 1, "tp", {"name": "tp"}, MADE | {"nodes": -1}, MADE | {"profile": 7})),
    opened,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_calibration_that_is_none_is_made_anew_and_that_is_said(
    damage: Callable[[Path], object], folder: Path
) -> None:
    first, _ = asked()
    path = the_file(folder)
    damage(path)
    again, said = asked()
    assert again == first
    assert str(path) in said[0]
    assert "measuring" in said[0]
    assert json.loads(path.read_text(encoding="utf-8")) == MADE


def deep(path: Path) -> None:
    import hashlib

    content = "[" * 100_000
    path.write_text(content, encoding="utf-8")
    path.with_suffix(".sha256").write_text(hashlib.sha256(content.encode()).hexdigest())


def test_a_document_of_any_depth_is_damaged(tmp_path: Path) -> None:
    deep(tmp_path / "x.json")
    with pytest.raises(DamagedError):
        kept(tmp_path / "x.json")


@pytest.mark.parametrize(
    "value", ["1", None, True, 0.0, -1.0, 86_400.0, 1e300, [1.0], {"seconds": 1.0}, 1]
)
def test_kept_seconds_are_durations(value: object, tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    assert kept_seconds(path) == {}
    keep(path, {"a": 1e-6, "b": 3.0})
    assert kept_seconds(path) == {"a": 1e-6, "b": 3.0}
    keep(path, {"a": 1e-6, "b": value})
    with pytest.raises(DamagedError):
        kept_seconds(path)
    keep(path, [value])
    with pytest.raises(DamagedError):
        kept_seconds(path)


def test_nothing_is_believed_or_kept_in_a_folder_that_others_can_write(folder: Path) -> None:
    asked()
    keep(the_file(folder), OTHER)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    folder.chmod(0o777)
    found, said = asked()
    assert found.name == "perlmutter"
    assert str(folder) in said[0]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_somebody_else_wrote_is_measured_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked()
    path = the_file(folder)
    keep(path, OTHER)
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
        found, said = asked()
        assert found.name == "perlmutter"
        assert_names(said[0], str(path))
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    if own:
        with pytest.raises(DamagedError, check=names(str(path))):
            kept(path)


@pytest.mark.parametrize("way", ["off", "no home"])
def test_where_nothing_is_kept_a_calibration_is_used_once(
    way: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.setenv("SIMGPT_CACHE", "off" if way == "off" else "")
    found, said = asked()
    assert found.name == "perlmutter"
    assert not any(".json" in line for line in said)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_neither_follows_a_link_nor_empties_a_file(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    folder.mkdir(mode=0o700)
    lock = folder / "host.lock"
    lock.symlink_to(precious)
    with pytest.raises(LaunchError, check=names(str(folder))), alone(folder / "host.json"):
        pytest.fail("the lock was taken")
    lock.unlink()
    lock.write_text("kept", encoding="utf-8")
    with alone(folder / "host.json"):
        descriptor = os.open(lock, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    assert (precious.read_text(), lock.read_text()) == ("mine", "kept")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "host.lock")
    with pytest.raises(LaunchError), alone(tmp_path / "host.json"):
        pytest.fail("the lock was taken")


@pytest.mark.parametrize("which", ["host.json", "host.sha256"])
def test_what_a_link_points_to_is_neither_believed_nor_written(which: str, tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "cache" / "host.json"
    keep(path, MADE)
    precious.write_bytes((path.parent / which).read_bytes())
    (path.parent / which).unlink()
    (path.parent / which).symlink_to(precious)
    before = precious.read_bytes()
    with pytest.raises(DamagedError):
        kept(path)
    keep(path, OTHER)
    assert kept(path) == OTHER
    assert precious.read_bytes() == before


def _calibrate_slowly(folder: str) -> None:
    def slow(*_: object, **__: object) -> dict[str, Any]:
        with (Path(folder) / "calls").open("a") as calls:
            calls.write("one\n")
        time.sleep(0.5)
        return MADE

    calibration.calibrate = slow
    os.environ["SIMGPT_CACHE"] = folder  # in this process alone, which was made for it
    cached(TASK, 1, lambda _: None)


def test_of_two_that_start_at_once_only_one_measures(tmp_path: Path) -> None:
    assert ranks.PRELOADED, "they are forked from the server of all ranks of tests"
    server = multiprocessing.get_context("forkserver")
    both = [server.Process(target=_calibrate_slowly, args=(str(tmp_path),)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / "calls").read_text() == "one\n"
