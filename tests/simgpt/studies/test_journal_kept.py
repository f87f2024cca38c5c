"""The journal of a sweep keeps every good row, wherever another one is damaged or missing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest

from simgpt.question_rows import QuestionError
from simgpt.studies import rows, workers
from simgpt.studies.errors import ResultsError
from simgpt.studies.evaluate import Batch, Row, rows_of
from simgpt.studies.inputs import Inputs, inputs_of
from simgpt.studies.journal import KEPT, RESULTS, STUDY, Journal
from simgpt.studies.rows import line_of, row_of
from simgpt.studies.study import Study
from simgpt.studies.sweep_rows import SweepResources, sweep_into
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from tests.simgpt.studies.processes import write_study
from tests.simgpt.studies.worlds import GRID, study
from topologies.errors import DiskError

Lines = list[bytes]
DEVICES = {"model": "tiny-30k", "machine": "host", "batch": 4, "set": {"precision": "fp32"}}
SCALED = {**DEVICES, "scaling": {"kind": "strong", "devices": [1, 2, 4]}, "sweep": {"zero": [0, 1]}}


World = tuple[Study, Inputs, tuple[bytes, ...]]


def world(scaled: bool = False) -> World:
    """A study, its inputs, and the lines of a sweep that nothing happens to."""
    return _world(scaled)


@cache
def _world(scaled: bool) -> World:
    asked = study(SCALED if scaled else {**GRID, "tokens": "1M"})
    inputs = inputs_of(asked)
    with TemporaryDirectory() as folder:
        sweep_into(Path(folder), asked, inputs, SweepResources(), lambda _: None)
        lines = (Path(folder) / RESULTS).read_bytes().splitlines(keepends=True)
    return asked, inputs, tuple(lines)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the rows that are predicted."""
    numbers: list[int] = []
    world(), world(scaled=True)  # before they are counted

    def counted(inputs: Inputs, batch: Batch) -> list[Row]:
        numbers.extend(number for number, _ in batch)
        return rows_of(inputs, batch)

    monkeypatch.setattr(workers, "rows_of", counted)
    return numbers


def left_with(folder: Path, lines: Lines, scaled: bool = False) -> Callable[[], list[str]]:
    """A folder of that study with such a file of rows; sweeping it again says what it noted."""
    asked, inputs, _ = world(scaled)
    with Journal(folder, asked, inputs):
        pass
    (folder / RESULTS).write_bytes(b"".join(lines))

    def swept() -> list[str]:
        said: list[str] = []
        sweep_into(folder, asked, inputs, SweepResources(note=said.append), lambda _: None)
        return said

    return swept


def failed(line: bytes) -> bytes:
    """The line of the same point, had the simulator failed at it."""
    row = row_of(line)
    lost = dict.fromkeys(("prediction", "training"))
    return line_of(row | lost | {"status": "error", "reason": "KeyError: 1"})


DAMAGED: dict[str, tuple[Callable[[Lines], Lines], list[int], int]] = {
    "a digit": (lambda a: [a[0], a[1].replace(b"0.", b"1.", 1), *a[2:]], [1], 1),
    "the first": (lambda a: [b"3\n", *a[1:]], [0], 0),
    "gone": (lambda a: [*a[:3], *a[4:]], [3], 3),
    "two": (lambda a: [a[0], b"{\n", a[2], a[3][:-1] + b" \n", *a[4:]], [1, 3], 1),
    "joined": (lambda a: [*a[:2], a[2][:-1] + a[3], *a[4:]], [2, 3], 2),
    "more": (lambda a: [*a[:2], b"\n", *a[2:]], [], 2),
    "twice": (lambda a: [*a[:2], *a[:2], *a[2:]], [], 2),
    "turned": (lambda a: a[::-1], [], 0),
    "failed": (lambda a: [*a[:2], failed(a[2]), a[3], failed(a[4]), *a[5:]], [2, 4], 2),
    "torn too": (lambda a: [b"\xff\n", *a[1:-1], a[-1][:-9]], [0, 8], 0),
}


@pytest.mark.parametrize(("damage", "anew", "first"), DAMAGED.values(), ids=DAMAGED)
def test_only_rows_that_are_not_as_they_were_written_are_predicted_anew(
    damage: Callable[[Lines], Lines], anew: list[int], first: int, tmp_path: Path, made: list[int]
) -> None:
    lines = list(world()[2])
    swept = left_with(tmp_path, damage(lines))
    (said,) = swept()
    assert made == anew
    assert_names(said, f"row {first}", str(tmp_path / RESULTS))
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == [RESULTS, STUDY]
    assert swept() == []


def test_the_rungs_behind_one_that_failed_have_their_efficiency_again(tmp_path: Path) -> None:
    lines = list(world(scaled=True)[2])
    behind = [row_of(line) for line in lines[1:3]]
    for row in behind:
        row["scaling"] = row["scaling"] | {"efficiency": None}
    swept = left_with(tmp_path, [failed(lines[0]), *map(line_of, behind), *lines[3:]], scaled=True)
    swept()
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines)


@pytest.mark.parametrize("damaged", range(6))
def test_a_row_of_a_ladder_is_made_anew_with_its_efficiency(
    damaged: int, tmp_path: Path, made: list[int]
) -> None:
    lines = list(world(scaled=True)[2])
    left_with(tmp_path, [*lines[:damaged], b"{}\n", *lines[damaged + 1 :]], scaled=True)()
    assert made == [damaged]
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines)


def test_rows_that_were_kept_outlast_a_sweep_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    """Rows 1 and 5 are damaged, and the sweep that mends them ends at 5; then 1 is again."""
    lines = list(world()[2])
    swept = left_with(tmp_path, [lines[0], b"{\n", *lines[2:5], b"{\n", *lines[6:]])
    counted: Callable[[Inputs, Batch], list[Row]] = vars(workers)["rows_of"]

    def ends_at_five(inputs: Inputs, batch: Batch) -> list[Row]:
        if batch[0][0] == 5:
            raise MemoryError
        return counted(inputs, batch)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(workers, "rows_of", ends_at_five)
        swept()
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines[:5])
    assert set(lines[6:]) <= set((tmp_path / KEPT).read_bytes().splitlines(keepends=True))
    (tmp_path / RESULTS).write_bytes(b"".join([lines[0], b"{\n", *lines[2:5]]))
    swept()
    assert made == [1, 1, 5]
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines)
    assert not (tmp_path / KEPT).exists()


def test_good_rows_are_on_the_disk_elsewhere_before_they_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list(world()[2])
    swept = left_with(tmp_path, [lines[0], b"{\n", *lines[2:]])

    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        monkeypatch.context() as patch,
        pytest.raises(DiskError, check=names(os.strerror(errno.ENOSPC))),
    ):
        patch.setattr(os, "fsync", full)
        swept()
    assert (tmp_path / RESULTS).read_bytes() == b"".join([lines[0], b"{\n", *lines[2:]])


WRONG: list[tuple[str, Any]] = [
    ("prediction", {}),
    ("prediction.step_s", None),
    ("prediction.step_s", 0),
    ("prediction.mfu", "much"),
    ("prediction.memory", {}),
    ("prediction.memory.peak_bytes", True),
    ("prediction.cost", 3),
    ("prediction.cost.node_s_per_step", 10**400),
    ("prediction.cost.energy_j_per_step", []),
    ("prediction.breakdown_s", {"compute": None}),
    ("prediction.breakdown_s", None),
    ("prediction.plan", None),
    ("prediction.plan_string", None),
    ("training", None),
    ("training", {"time_s": 1.0, "node_s": 1.0}),
    ("scaling", {"efficiency": 1.0}),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_row_without_what_a_table_reads_is_predicted_anew_whatever_its_checksum(
    key: str, value: Any, tmp_path: Path, made: list[int]
) -> None:
    lines = list(world()[2])
    row = json.loads(lines[2])
    *way, last = key.split(".")
    table = row
    for part in way:
        table = table[part]
    table[last] = value
    (said,) = left_with(tmp_path, [*lines[:2], line_of(row), *lines[3:]])()
    assert_names(said, "row 2")
    assert made == [2]
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines)


def test_a_row_of_a_ladder_without_its_efficiency_is_predicted_anew(
    tmp_path: Path, made: list[int]
) -> None:
    lines = list(world(scaled=True)[2])
    row = line_of({**json.loads(lines[2]), "scaling": {"kind": "strong"}})
    left_with(tmp_path, [*lines[:2], row, *lines[3:]], scaled=True)()
    assert made == [2]


@pytest.mark.parametrize("name", [STUDY, RESULTS, KEPT])
@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.timeout(60)
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(
    name: str, kind: str, tmp_path: Path
) -> None:
    asked, inputs, lines = world()
    left_with(tmp_path, list(lines))
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(QuestionError, check=names(name)):
        Journal(tmp_path, asked, inputs)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"base": ' * 50 + "1" + "}" * 50])
def test_a_study_json_without_end_is_refused(content: str, tmp_path: Path) -> None:
    asked, inputs, lines = world()
    left_with(tmp_path, list(lines))
    (tmp_path / STUDY).write_text(content, encoding="utf-8")
    with pytest.raises(QuestionError, check=names(STUDY)):
        Journal(tmp_path, asked, inputs)


def test_a_study_json_with_lists_for_tables_is_refused(tmp_path: Path) -> None:
    asked, inputs, lines = world()
    left_with(tmp_path, list(lines))
    record = json.loads((tmp_path / STUDY).read_text(encoding="utf-8"))
    (tmp_path / STUDY).write_text(json.dumps({**record, "base": [1]}), encoding="utf-8")
    with pytest.raises(QuestionError, check=names("base")):
        Journal(tmp_path, asked, inputs)


def test_a_line_longer_than_any_row_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    lines = list(world()[2])
    swept = left_with(tmp_path, lines)
    monkeypatch.setattr(rows, "MOST_BYTES", 2**16)
    with (tmp_path / RESULTS).open("wb") as file:
        file.write(lines[0])
        file.truncate(2**22)
    assert max(map(len, rows.lines_in(tmp_path / RESULTS))) == 2**16
    swept()
    assert made == list(range(1, 9))
    assert (tmp_path / RESULTS).read_bytes() == b"".join(lines)


def test_a_draft_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    (tmp_path / "mine").write_text("kept", encoding="utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.json.part").symlink_to(tmp_path / "mine")
    with Journal(tmp_path / "out", asked, inputs):
        assert (tmp_path / "mine").read_text(encoding="utf-8") == "kept"
    assert not (tmp_path / "out" / STUDY).is_symlink()


def test_the_names_of_a_new_folder_are_on_the_disk_and_of_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, inputs, _ = world()
    synced: list[tuple[int, int]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "a" / "b"
    with Journal(folder, asked, inputs):
        pass
    for each in (folder, folder.parent, tmp_path):
        assert (each.stat().st_dev, each.stat().st_ino) in synced


def test_a_disk_without_room_for_the_folder_ends_with_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asked, inputs, _ = world()
    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(
        ResultsError, check=names(str(tmp_path / "out"), os.strerror(errno.ENOSPC))
    ) as error:
        Journal(tmp_path / "out", asked, inputs)
    assert error.value.exit_code == 5


@pytest.mark.usefixtures("figures_left_out")
def test_a_study_whose_name_is_no_text_in_utf_8(tmp_path: Path) -> None:
    write_study(tmp_path, 1).rename(place := tmp_path / "s\udcff.toml")
    said = simgpt("sweep", str(place), "-o", str(tmp_path / "out"))
    assert (said.status, said.err) == (0, "")
    record = json.loads((tmp_path / "out" / STUDY).read_text(encoding="utf-8"))
    assert "s\\udcff.toml" in record["asked"]["command"]
    assert simgpt("report", str(tmp_path / "out"), "-o", str(tmp_path / "p.html")).status == 0
