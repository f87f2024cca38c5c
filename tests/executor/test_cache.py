"""What is kept between runs is whole or it is measured anew; a file is never left half written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.calibrating.measurement_cache import DamagedError, keep, kept
from executor.errors import LaunchError
from tests.messages import names

DOCUMENT = {"kernels": {"matmul@fp32": [{"m": 1.0, "seconds": 2.5e-6}]}}


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").touch()


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


WHOLE = json.dumps(DOCUMENT)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": text(WHOLE[:-9]),
    "empty": text(""),
    "an empty object": text("{}"),
    "a list": text("[]"),
    "no kernels": text('{"kernels": {}}'),
    "NaN": text(WHOLE.replace("2.5e-06", "NaN")),
    "another digit": text(WHOLE.replace("2.5", "2.6")),
    "deep": text("[" * 100_000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "a folder": folder_instead,
    "a FIFO": pipe_instead,
    "a link to nothing": link_to_nothing,
    "no digest": lambda path: path.with_suffix(".sha256").unlink(),
    "another's digest": lambda path: path.with_suffix(".sha256").write_text("0" * 64),
}


def test_what_is_kept_comes_back_and_what_never_was_is_none(tmp_path: Path) -> None:
    path = tmp_path / "new" / "host.json"
    assert kept(path) is None
    keep(path, DOCUMENT)
    assert kept(path) == DOCUMENT
    assert {each.name for each in path.parent.iterdir()} == {"host.json", "host.sha256"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_noticed_and_can_be_kept_again(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    keep(path, DOCUMENT)
    DAMAGES[damage](path)
    with pytest.raises(DamagedError):
        kept(path)
    keep(path, DOCUMENT)
    assert kept(path) == DOCUMENT


def test_a_folder_in_the_place_of_a_file_is_moved_aside_with_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.mkdir()
    (path / "mine").touch()
    keep(path, DOCUMENT)
    assert kept(path) == DOCUMENT
    assert [each.parent.name[:10] for each in tmp_path.rglob("mine")] == ["host.json."]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_as_it_was_and_no_draft(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(LaunchError, check=names("host.json", os.strerror(errno.ENOSPC))):
        keep(path, DOCUMENT)
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["host.json"]
