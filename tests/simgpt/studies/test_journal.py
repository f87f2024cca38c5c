"""The journal: however a sweep ends, the next one goes on, and the bytes are the same."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpt.question_rows import QuestionError
from simgpt.studies.errors import ResultsError
from simgpt.studies.inputs import Inputs, inputs_of
from simgpt.studies.journal import RESULTS, STUDY, Journal, rows_in
from simgpt.studies.rows import line_of
from simgpt.studies.study import Study
from simgpt.studies.sweep_rows import SweepResources, sweep_into
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from tests.simgpt.studies.processes import count, write_study
from tests.simgpt.studies.worlds import GRID, SMALL, study
from topologies.errors import DiskError, OutputError


@cache
def world() -> tuple[Study, Inputs, bytes]:
    """A study, its inputs, and the bytes of a sweep that nobody interrupts."""
    asked = study(GRID)
    inputs = inputs_of(asked)
    with TemporaryDirectory() as folder:
        swept(Path(folder), asked, inputs)
        return asked, inputs, (Path(folder) / RESULTS).read_bytes()


def swept(
    folder: Path, asked: Study, inputs: Inputs, note: Callable[[str], None] = lambda _: None
) -> list[int]:
    """Sweep into the folder; how many rows were there before each step of progress."""
    done: list[int] = []
    sweep_into(folder, asked, inputs, SweepResources(note=note), done.append)
    return done


def test_every_point_has_its_row_and_what_cannot_run_says_why() -> None:
    asked, _, content = world()
    rows = [json.loads(line) for line in content.splitlines()]
    assert [row["id"] for row in rows] == list(range(9))
    assert [row["point"] for row in rows] == list(asked.points())
    assert [row["status"] for row in rows] == ["ok"] * 6 + ["infeasible"] * 3
    assert {row["reason"] for row in rows[:6]} == {""}
    assert_names(rows[6]["reason"], "tp=3", "2 devices")
    assert (rows[6]["prediction"], rows[0]["prediction"]["devices"]) == (None, 2)


CUTS = given(cut=st.integers(0, 10**6), rest=st.binary(max_size=40))


@settings(max_examples=12)
@CUTS
def test_a_sweep_cut_at_any_byte_goes_on_to_the_same_bytes(cut: int, rest: bytes) -> None:
    assert_it_goes_on(cut, rest)


@pytest.mark.slow
@settings(max_examples=200)
@CUTS
def test_a_sweep_cut_at_many_a_byte_goes_on_to_the_same_bytes(cut: int, rest: bytes) -> None:
    assert_it_goes_on(cut, rest)


def assert_it_goes_on(cut: int, rest: bytes) -> None:
    """Whatever stands behind the cut, torn or not, is no row of this study."""
    asked, inputs, whole = world()
    cut %= len(whole) + 1
    with TemporaryDirectory() as folder:
        results = Path(folder) / RESULTS
        swept_nothing(Path(folder), asked, inputs)
        results.write_bytes(whole[:cut] + rest)
        done = swept(Path(folder), asked, inputs)
        assert results.read_bytes() == whole
    kept = whole[:cut].count(b"\n")
    assert done[0] >= kept, "a whole row was thrown away"
    assert done == list(range(done[0], 10))


def swept_nothing(folder: Path, asked: Study, inputs: Inputs) -> None:
    with Journal(folder, asked, inputs):
        pass


@pytest.mark.parametrize("bad", [b"\n", b"[1]\n", b"3\n", b'{"id":2}\n', b'{"id":1}\n', b"\xff\n"])
def test_a_line_that_is_no_row_of_the_study_is_made_anew(bad: bytes, tmp_path: Path) -> None:
    asked, inputs, whole = world()
    swept_nothing(tmp_path, asked, inputs)
    lines = whole.splitlines(keepends=True)
    (tmp_path / RESULTS).write_bytes(lines[0] + bad + b"".join(lines[2:]))
    assert swept(tmp_path, asked, inputs)[0] == 1
    assert (tmp_path / RESULTS).read_bytes() == whole


@pytest.mark.parametrize("behind", [b"{", b"3\n", b'{"id":9}\n' * 100])
def test_what_stands_behind_the_last_row_is_cut_off(behind: bytes, tmp_path: Path) -> None:
    asked, inputs, whole = world()
    swept_nothing(tmp_path, asked, inputs)
    (tmp_path / RESULTS).write_bytes(whole + behind)
    assert swept(tmp_path, asked, inputs) == [9]
    assert (tmp_path / RESULTS).read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"point": {**SMALL, "zero": 2}},
        {"id": 3},
        {"status": "fine"},
        {"status": None},
        {"prediction": None},
        {"prediction": 3},
        {"reason": None},
        {"more": 1},
    ],
)
def test_a_row_of_another_point_or_shape_is_made_anew_whatever_its_checksum(
    change: dict[str, Any], tmp_path: Path
) -> None:
    asked, inputs, whole = world()
    swept_nothing(tmp_path, asked, inputs)
    lines = whole.splitlines(keepends=True)
    changed = line_of({**json.loads(lines[1]), **change})
    (tmp_path / RESULTS).write_bytes(lines[0] + changed + b"".join(lines[2:]))
    said: list[str] = []
    assert swept(tmp_path, asked, inputs, said.append)[0] == 1
    (line,) = said
    assert_names(line, "row 1", str(tmp_path / RESULTS))
    assert (tmp_path / RESULTS).read_bytes() == whole


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"step_s":0.', b'"step_s":1.'),
        (b'"status":"ok",', b""),
        (b'"reason":', b'"reason": '),
        (b'"checksum":', b'"other":'),
        (b'"id":', b'"id"'),
    ],
)
def test_a_changed_row_is_named_and_predicted_anew(old: bytes, new: bytes, tmp_path: Path) -> None:
    asked, inputs, whole = world()
    swept(tmp_path, asked, inputs)
    lines = whole.splitlines(keepends=True)
    assert old in lines[3]
    (tmp_path / RESULTS).write_bytes(whole.replace(lines[3], lines[3].replace(old, new, 1)))
    said: list[str] = []
    assert swept(tmp_path, asked, inputs, said.append)[0] == 3
    (line,) = said
    assert_names(line, "row 3", str(tmp_path / RESULTS))
    assert (tmp_path / RESULTS).read_bytes() == whole


@settings(max_examples=50)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_not_believed(at: int, bit: int) -> None:
    asked, inputs, whole = world()
    changed = bytearray(whole)
    changed[at % len(whole)] ^= 1 << bit
    with TemporaryDirectory() as folder:
        swept_nothing(Path(folder), asked, inputs)
        (Path(folder) / RESULTS).write_bytes(changed)
        swept(Path(folder), asked, inputs)
        assert (Path(folder) / RESULTS).read_bytes() == whole


def test_a_row_cut_short_is_nobodys_fault(tmp_path: Path) -> None:
    asked, inputs, whole = world()
    swept_nothing(tmp_path, asked, inputs)
    (tmp_path / RESULTS).write_bytes(whole[:-1])
    said: list[str] = []
    assert swept(tmp_path, asked, inputs, said.append)[0] == 8
    assert said == []


def test_rows_are_on_the_disk_before_the_next_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the file when it is synchronised, row by row, and at the end."""
    asked, inputs, _ = world()
    synced: list[int] = []
    sync = os.fsync

    def counted(descriptor: int) -> None:
        sync(descriptor)
        if os.path.samestat(os.fstat(descriptor), (tmp_path / RESULTS).stat()):
            synced.append(count(tmp_path / RESULTS))

    monkeypatch.setattr(os, "fsync", counted)
    seen: list[int] = []
    sweep_into(tmp_path, asked, inputs, SweepResources(), lambda _: seen.append(len(synced)))
    assert synced == list(range(1, 10))
    assert seen == [0, 0, *range(1, 9)]


def test_a_disk_that_is_full_ends_a_sweep_with_status_5_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asked, inputs, whole = world()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskError, check=names(os.strerror(errno.ENOSPC))) as refused:
            Journal(tmp_path, asked, inputs)
        assert refused.value.exit_code == 5
    assert [each.name for each in tmp_path.iterdir()] == [RESULTS]
    swept_nothing(tmp_path, asked, inputs)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ResultsError, check=names(os.strerror(errno.ENOSPC))):
            swept(tmp_path, asked, inputs)
    swept(tmp_path, asked, inputs)
    assert (tmp_path / RESULTS).read_bytes() == whole


def test_a_finished_sweep_predicts_nothing_again(tmp_path: Path) -> None:
    asked, inputs, whole = world()
    swept(tmp_path, asked, inputs)
    before = (tmp_path / RESULTS).stat().st_mtime_ns
    assert swept(tmp_path, asked, inputs) == [9]
    assert (tmp_path / RESULTS).stat().st_mtime_ns == before
    assert (tmp_path / RESULTS).read_bytes() == whole


def test_a_row_is_in_the_file_before_the_next_is_predicted(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    seen: list[int] = []

    def count(done: int) -> None:
        seen.append((tmp_path / RESULTS).read_bytes().count(b"\n") - done)

    sweep_into(tmp_path, asked, inputs, SweepResources(), count)
    assert seen == [0] * 10


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch": 8}, ["batch"]),
        ({"sweep": {"plan.tp": [1, 2], "zero": [0, 1, 2]}}, ["plan.tp"]),
        ({"sweep": {"plan.tp": [1, 2, 3]}}, ["plan.zero"]),
        ({"point": [{"y": 1}]}, ["points"]),
        ({"model": "tiny-1m"}, ["model"]),
    ],
)
def test_a_changed_study_is_refused_by_name(
    change: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    asked, inputs, whole = world()
    swept(tmp_path, asked, inputs)
    other = study(GRID, **change)
    with pytest.raises(QuestionError, check=names(str(tmp_path), "-o", *named)):
        Journal(tmp_path, other, inputs_of(other))
    assert (tmp_path / RESULTS).read_bytes() == whole


def test_a_machine_file_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    swept_nothing(tmp_path, asked, inputs)
    changed = Inputs(
        inputs.models, inputs.machines, inputs.stacks, (("machine host", "another"),), inputs.code
    )
    with pytest.raises(QuestionError, check=names("machine host")):
        Journal(tmp_path, asked, changed)


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    swept_nothing(tmp_path, asked, inputs)
    changed = Inputs(inputs.models, inputs.machines, inputs.stacks, inputs.digests, "another")
    with pytest.raises(QuestionError, check=names("version")):
        Journal(tmp_path, asked, changed)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1'])
def test_a_broken_study_json_is_refused_and_nothing_is_lost(content: str, tmp_path: Path) -> None:
    asked, inputs, whole = world()
    swept(tmp_path, asked, inputs)
    (tmp_path / STUDY).write_text(content, encoding="utf-8")
    with pytest.raises(QuestionError, check=names(STUDY)):
        Journal(tmp_path, asked, inputs)
    assert (tmp_path / RESULTS).read_bytes() == whole


def test_a_folder_with_somebody_else_s_results_is_left_alone(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    (tmp_path / RESULTS).write_text("my own\n", encoding="utf-8")
    with pytest.raises(QuestionError, check=names(RESULTS, STUDY)):
        Journal(tmp_path, asked, inputs)
    assert (tmp_path / RESULTS).read_text(encoding="utf-8") == "my own\n"


def test_a_sweep_killed_before_it_said_whose_the_folder_is_starts_anew(tmp_path: Path) -> None:
    asked, inputs, whole = world()
    (tmp_path / RESULTS).touch()
    (tmp_path / "study.json.part").write_text("{", encoding="utf-8")
    swept(tmp_path, asked, inputs)
    assert (tmp_path / RESULTS).read_bytes() == whole


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    with (
        Journal(tmp_path, asked, inputs),
        pytest.raises(QuestionError, check=names(str(tmp_path))),
    ):
        Journal(tmp_path, asked, inputs)
    with Journal(tmp_path, asked, inputs) as journal:
        assert journal.done == 0


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "sealed"
    folder.mkdir(mode=0o500)
    yield folder
    folder.chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(sealed: Path) -> None:
    asked, inputs, _ = world()
    with pytest.raises(QuestionError, check=names(os.strerror(errno.EACCES))):
        Journal(sealed, asked, inputs)


def test_a_full_disk_is_said_and_the_rows_before_it_are_kept(tmp_path: Path) -> None:
    study_file = write_study(tmp_path, 3)
    limited = (
        f"ulimit -f 16; exec {sys.executable} -m simgpt sweep {study_file} -o {tmp_path / 'o'}"
    )
    done = subprocess.run(
        ["sh", "-c", limited], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert_names(done.stderr, RESULTS, os.strerror(errno.EFBIG))
    assert done.stderr.count("\n") == 1
    assert count(tmp_path / "o" / RESULTS) > 0
    for name in ("o", "whole"):
        assert simgpt("sweep", str(study_file), "-o", str(tmp_path / name)).status == 0
    files = [tmp_path / name / RESULTS for name in ("o", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_file_system_without_locks_takes_rows_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    asked, inputs, whole = world()
    swept(tmp_path, asked, inputs)
    assert (tmp_path / RESULTS).read_bytes() == whole


def test_a_study_json_that_cannot_be_written(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    (tmp_path / STUDY).symlink_to("/nowhere/study.json")
    with pytest.raises(OutputError, check=names(STUDY, os.strerror(errno.ENOENT))):
        Journal(tmp_path, asked, inputs)


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    (tmp_path / "file").touch()
    with pytest.raises(QuestionError, check=names(str(tmp_path / "file"))):
        Journal(tmp_path / "file", asked, inputs)


def test_tokens_say_what_training_takes_in_every_row(tmp_path: Path) -> None:
    asked = study(SMALL, tokens="1M", sweep={"tp": [1, 2, 3]})
    swept(tmp_path, asked, inputs_of(asked))
    rows = list(rows_in(tmp_path))
    steps = -(-1_000_000 // (4 * 16))
    assert [row["training"] and row["training"]["steps"] for row in rows] == [steps, steps, None]
