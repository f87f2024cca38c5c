"""What is kept is believed only if nobody else can have written it, and if such numbers can be."""

from __future__ import annotations

import dataclasses
import math
import os
import pwd
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simgpt.face import simgpt
from tests.topologies.test_kept_results import (
    FRONTIER,
    axes_of,
    counted,
    found_on,
    keep,
    plain,
    rows_of,
)
from topologies.files.cache_folder import Refused, cache_folder
from topologies.kept_results import NAME
from topologies.placement import contiguous
from topologies.routing.rings import Ring, packed, rings_together, unpacked
from topologies.session import Session


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are kept during a test."""
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "results"


def changed(ring: Ring, field: str, value: Any) -> Ring:
    return dataclasses.replace(ring, **{field: value})


WRONG_RINGS: dict[str, list[object]] = {
    "ranks": [0, 3],
    "nodes": [0, -1, 5],
    "devices_per_node": [0, 5],
    "bytes_per_s": [math.nan, math.inf, 0.0, -1.0],
    "within_bytes_per_s": [math.nan, 0.0, -math.inf],
    "further_s": [math.nan, math.inf, -1e-6],
    "fabric_share": [math.nan, math.inf, 0.0, -0.5, 1.5],
    "pair_links": [-2],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, each) for field, values in WRONG_RINGS.items() for each in values]
)
def test_rings_that_cannot_be_are_not_believed(field: str, value: object) -> None:
    ((index, (ring,)),) = found_on(FRONTIER, contiguous(FRONTIER, 64))[:1]
    assert unpacked(packed([(index, [ring])]), [(16, 4)]) is not None
    assert unpacked(packed([(index, [changed(ring, field, value)])]), [(16, 4)]) is None


@pytest.mark.parametrize("ends", [[2**31 - 1], [8, 2**31 - 1], [16, 8], [-1, 16], [0, 16], [15]])
def test_runs_that_do_not_add_up_are_refused_before_they_are_expanded(ends: list[int]) -> None:
    """Two thousand million of the same ring are 16 GiB."""
    ((index, (ring,)),) = found_on(FRONTIER, contiguous(FRONTIER, 64))[:1]
    whole = packed([(index, [ring])])
    size = 4 * 2  # one run: where it ends, and its ring
    head = np.array([1, len(ends)], "<i8").tobytes() + whole[16:-size]
    runs = np.array([*ends, *[0] * len(ends)], "<i4").tobytes()
    with limited_memory():
        assert unpacked(head + runs, [(16, 4)]) is None


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("count", [0, -1, -2, 2, 2**31, 2**62, 2**63 - 1, -(2**63)])
def test_counts_that_are_no_counts_are_refused(at: int, count: int) -> None:
    found = found_on(FRONTIER, contiguous(FRONTIER, 64))[:1]
    data = packed(found)
    changed_data = data[: 8 * at] + np.array([count], "<i8").tobytes() + data[8 * at + 8 :]
    assert unpacked(changed_data, [(16, 4)]) is None


@contextmanager
def limited_memory() -> Iterator[None]:
    """A gibibyte of addresses more than there are."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("field", ["bytes_per_s", "fabric_share"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_kept_numbers_out_of_range_change_no_answer(
    folder: Path, field: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = contiguous(FRONTIER, 64)
    expected = plain(found_on(FRONTIER, placement))
    ((key, kept),) = rows_of(folder / NAME).items()
    found = unpacked(kept, [axis.shape for axis in axes_of(64)])
    assert found is not None
    wrong = [(index, [changed(ring, field, value) for ring in every]) for index, every in found]
    keep({key: packed(wrong)})
    calls = counted(monkeypatch)
    assert plain(found_on(FRONTIER, placement)) == expected
    assert len(calls) == 1


def owned_by_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can give a file away; for others, the user becomes somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
    else:
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)


def open_to(mode: int) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda path, _: path.chmod(mode)


@pytest.mark.parametrize("what", ["cache", "cache/results", "file"])
@pytest.mark.parametrize(
    "give", [owned_by_another, open_to(0o722), open_to(0o720), open_to(0o1777)]
)
def test_what_others_can_have_written_is_not_believed(
    folder: Path,
    what: str,
    give: Callable[[Path, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, placement = counted(monkeypatch), contiguous(FRONTIER, 64)
    expected = plain(found_on(FRONTIER, placement))
    (file,) = folder.iterdir()
    before = file.read_bytes()
    give({"cache": folder.parent, "cache/results": folder, "file": file}[what], monkeypatch)
    with Session() as session:
        found = rings_together(FRONTIER, placement, axes_of(64))
        (why,) = session.the(Refused).reasons
    assert plain(found) == expected
    assert len(calls) == 2
    assert what.rpartition("/")[2] in why or file.name in why
    assert what == "file" or file.read_bytes() == before


def test_what_is_kept_is_the_users_alone_whatever_the_umask(folder: Path) -> None:
    umask = os.umask(0)
    try:
        found_on(FRONTIER, contiguous(FRONTIER, 64))
    finally:
        os.umask(umask)
    (file,) = folder.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, file)]
    assert modes == [0o700, 0o700, 0o600]
    with Session() as session:
        rings_together(FRONTIER, contiguous(FRONTIER, 64), axes_of(64))
        assert not session.the(Refused).reasons


def test_a_link_in_the_place_of_a_file_is_neither_read_nor_written_through(
    folder: Path, tmp_path: Path
) -> None:
    placement = contiguous(FRONTIER, 64)
    expected = plain(found_on(FRONTIER, placement))
    (file,) = folder.iterdir()
    other = tmp_path / "precious"
    file.rename(other)
    other.write_bytes(b"mine")
    os.utime(other, (1, 1))
    file.symlink_to(other)
    assert plain(found_on(FRONTIER, placement)) == expected
    assert (other.read_bytes(), other.stat().st_mtime) == (b"mine", 1)
    assert not file.is_symlink()


def test_a_command_says_once_that_it_does_not_use_a_folder_of_others(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    said = simgpt("predict", "tiny-2m", "-m", "perlmutter", "-n", "8", "--batch", "16")
    assert said.status == 0
    assert sum(str(folder) in line for line in said.err.splitlines()) == 1
    assert not list(folder.iterdir())


def test_the_folder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/ada/kept")
    monkeypatch.setenv("SIMGPT_CACHE", "/scratch/ada")
    assert cache_folder() == Path("/scratch/ada")
    monkeypatch.delenv("SIMGPT_CACHE")
    assert cache_folder() == Path("/home/ada/kept/simgpt")
    monkeypatch.setenv("HOME", "/home/ada")
    for ignored in ("", "kept", "~/kept", "./kept"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path("/home/ada/.cache/simgpt")
    monkeypatch.setenv("HOME", "ada")
    assert cache_folder() is None
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert cache_folder() is None


def no_entry(_: int) -> None:
    raise KeyError
