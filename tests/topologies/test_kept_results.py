"""Rings kept from one run to the next: the same answers, whatever has happened to the files."""

from __future__ import annotations

import ast
import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from topologies import kept_results
from topologies.files import kept_values
from topologies.files.cache_folder import cache_folder
from topologies.files.kept_values import KeptValues, digest_of
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous, random
from topologies.routing import rings
from topologies.routing.rings import Found, packed, rings_together, unpacked
from topologies.session import Session

FRONTIER = load_machine("frontier")
SLOWER = with_settings(FRONTIER, {"node.nics.bandwidth": "12.5 GB/s"})
SUBJECT, KEY, OTHER = digest_of(b"subject"), digest_of(b"key"), digest_of(b"other")
WRITER = """
import sys
from pathlib import Path
from topologies.files.kept_values import KeptValues, digest_of
folder, own = Path(sys.argv[1]), sys.argv[2].encode()
for number in range(100):
    values = KeptValues(folder, digest_of(b"subject"))
    for known in range(number):
        kept = values.get(digest_of(own, bytes([known])))
        assert kept in (None, own * 1000), kept
    values.put(digest_of(own, bytes([number])), own * 1000)
    values.save()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are kept during a test."""
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "results"


def axes_of(ranks: int) -> list[np.ndarray]:
    inner = np.arange(ranks).reshape(-1, 4)
    return [inner, inner.T.copy(), np.arange(ranks).reshape(-1, 1)]


def found_on(machine: Machine, placement: Placement) -> list[Found]:
    """What a command finds, which has a session of its own."""
    with Session():
        return rings_together(machine, placement, axes_of(placement.ranks))


def plain(found: list[Found]) -> str:
    """Indices and rings with the types of all their numbers."""
    return repr([(str(index.dtype), index.tolist(), rings_of) for index, rings_of in found])


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one entry whenever rings are computed."""
    calls: list[int] = []
    computed = rings._computed

    def recorded(*args: object) -> list[Found]:
        calls.append(len(args))
        return computed(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(rings, "_computed", recorded)
    return calls


def test_tests_neither_read_nor_write_what_the_user_has_kept() -> None:
    assert os.environ["SIMGPT_CACHE"] == "off"
    assert cache_folder() is None


@pytest.mark.parametrize("placement", [contiguous(FRONTIER, 256), random(FRONTIER, 256, seed=3)])
def test_a_second_run_finds_the_rings_of_the_first_one(
    folder: Path, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    first = found_on(FRONTIER, placement)
    assert (len(calls), len(list(folder.iterdir()))) == (1, 1)
    second = found_on(FRONTIER, placement)
    assert len(calls) == 1
    assert plain(first) == plain(second)
    monkeypatch.setenv("SIMGPT_CACHE", "off")
    assert plain(found_on(FRONTIER, placement)) == plain(first)
    assert len(calls) == 2


def test_one_session_writes_one_file_for_all_rings_of_a_placement(folder: Path) -> None:
    placement = contiguous(FRONTIER, 64)
    with Session() as session:
        rings_together(FRONTIER, placement, axes_of(64))
        with session:
            rings_together(FRONTIER, placement, axes_of(64)[:1])
        assert not folder.exists()
    assert len(list(folder.iterdir())) == 1


def cut(path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path, data: bytes) -> None:
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


def pickled(path: Path, data: bytes) -> None:
    path.write_bytes(pickle.dumps({"rings": data}))


def of_another_subject(path: Path, _: bytes) -> None:
    """A whole file with rings of the same groups, on another machine."""
    found_on(SLOWER, contiguous(SLOWER, 256))
    (other,) = (kept for kept in path.parent.iterdir() if kept != path)
    os.replace(other, path)


def with_other_values(path: Path, data: bytes) -> None:
    """A whole file of the same subject and keys, whose values are no rings."""
    subject = bytes.fromhex(path.stem)
    for key in kept_values._values(subject, data):
        values = KeptValues(path.parent, subject)
        values.put(key, b"no rings")
        values.save()


def huge(path: Path, _: bytes) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def emptied(path: Path, _: bytes) -> None:
    path.write_bytes(b"")


def pipe(path: Path, _: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path, _: bytes) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [
    *(cut, flipped, pickled, of_another_subject, with_other_values),
    *(huge, emptied, pipe, directory),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_as_it_was_written_changes_no_answer(
    folder: Path, damage: Callable[[Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, placement = counted(monkeypatch), contiguous(FRONTIER, 256)
    first = found_on(FRONTIER, placement)
    (path,) = folder.iterdir()
    damage(path, path.read_bytes())
    calls.clear()
    assert plain(found_on(FRONTIER, placement)) == plain(first)
    assert len(calls) == 1
    assert plain(found_on(FRONTIER, placement)) == plain(first)
    assert len(calls) == (2 if damage is directory else 1)  # but for that it was replaced


def test_every_byte_of_a_file_is_guarded(tmp_path: Path) -> None:
    values = KeptValues(tmp_path, SUBJECT)
    values.put(KEY, b"value")
    values.put(OTHER, b"")
    values.save()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert kept_values._values(SUBJECT, data) == {KEY: b"value", OTHER: b""}
    for at in range(len(data)):
        assert kept_values._values(SUBJECT, data[:at]) == {}
        changed = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        assert kept_values._values(SUBJECT, changed) == {}


@pytest.mark.parametrize("where", ["/dev/null", "/proc/simgpt"])
def test_where_nothing_can_be_written_answers_are_the_same(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = contiguous(FRONTIER, 64)
    expected = plain(found_on(FRONTIER, placement))
    monkeypatch.setenv("SIMGPT_CACHE", where)
    for _ in range(2):
        assert plain(found_on(FRONTIER, placement)) == expected


def test_another_network_placement_or_code_has_a_file_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, placement = counted(monkeypatch), contiguous(FRONTIER, 256)
    expected = plain(found_on(FRONTIER, placement))
    assert plain(found_on(SLOWER, placement)) != expected
    found_on(FRONTIER, random(FRONTIER, 256, seed=5))
    monkeypatch.setattr(kept_results, "code_digest", lambda: digest_of(b"another version"))
    assert plain(found_on(FRONTIER, placement)) == expected
    assert len(calls) == len(list(folder.iterdir())) == 4


def test_machines_that_differ_in_their_software_alone_share_their_rings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, placement = counted(monkeypatch), contiguous(FRONTIER, 64)
    other = with_settings(FRONTIER, {"device.launch": "50 us", "software.compute_share": 0.5})
    assert plain(found_on(FRONTIER, placement)) == plain(found_on(other, placement))
    assert len(calls) == len(list(folder.iterdir())) == 1


def test_the_digest_of_the_code_is_of_every_module_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = kept_results.code_digest.__wrapped__
    (tmp_path / "routing").mkdir()
    monkeypatch.setattr(kept_results, "__file__", str(tmp_path / "kept_results.py"))
    assert digest() == b""
    (tmp_path / "kept_results.py").write_text("one")
    (tmp_path / "routing" / "rings.py").write_text("two")
    before = digest()
    assert before == digest()
    (tmp_path / "routing" / "rings.py").write_text("owt")
    assert digest() != before
    monkeypatch.setattr(np, "__version__", "0.1")
    (tmp_path / "routing" / "rings.py").write_text("two")
    assert digest() != before


def test_what_is_kept_takes_a_bounded_part_of_the_disk_the_least_recently_used_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_values, "MOST_FILES", 3)
    subjects = [digest_of(bytes([number])) for number in range(6)]
    paths = [tmp_path / f"{subject.hex()}.values" for subject in subjects]
    for age, subject in enumerate(subjects[:3]):
        values = KeptValues(tmp_path, subject)
        values.put(KEY, bytes(1000))
        values.save()
        os.utime(paths[age], (age, age))
    assert KeptValues(tmp_path, subjects[0]).get(KEY) is not None
    for number in (3, 4):
        values = KeptValues(tmp_path, subjects[number])
        values.put(KEY, bytes(1000))
        values.save()
    assert [path.exists() for path in paths] == [True, False, False, True, True, False]
    monkeypatch.setattr(kept_values, "MOST_BYTES", 2500)
    values = KeptValues(tmp_path, subjects[5])
    values.put(KEY, bytes(1000))
    values.save()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2500
    assert paths[5].exists()


def test_files_of_others_in_the_folder_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own folder may have been named."""
    monkeypatch.setattr(kept_values, "MOST_FILES", 1)
    others = [tmp_path / name for name in ("thesis.tex", "run.values", f"{'0' * 64}.values.old")]
    drafts = [tmp_path / f".{'0' * 64}.values-{'1' * 16}", tmp_path / f"{'0' * 64}.values"]
    for path in (*others, *drafts):
        path.write_bytes(b"kept")
        os.utime(path, (0, 0))
    values = KeptValues(tmp_path, SUBJECT)
    values.put(KEY, bytes(10))
    values.save()
    assert all(path.read_bytes() == b"kept" for path in others)
    assert not any(path.exists() for path in drafts)
    assert KeptValues(tmp_path, SUBJECT).get(KEY) == bytes(10)


def test_a_file_takes_a_bounded_part_and_the_oldest_values_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_values, "MOST_FILE_BYTES", 10_000)
    values = KeptValues(tmp_path, SUBJECT)
    keys = [digest_of(bytes([number])) for number in range(20)]
    for key in keys:
        values.put(key, bytes(900))
    values.put(keys[19], bytes(901))
    values.save()
    (path,) = tmp_path.iterdir()
    assert 9_000 < path.stat().st_size <= 10_000
    for known in (values, KeptValues(tmp_path, SUBJECT)):
        assert [known.get(key) is not None for key in keys] == [False] * 10 + [True] * 10


def test_processes_that_write_one_file_at_once_leave_a_whole_one(tmp_path: Path) -> None:
    names = [b"a", b"b", b"c"]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in names
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    (path,) = tmp_path.iterdir()
    values = kept_values._values(SUBJECT, path.read_bytes())
    assert len(values) >= 100  # of 300: where two write at the same moment, one's may be lost
    last = [values.get(digest_of(name, bytes([99]))) for name in names]
    assert sum(value is not None for value in last) >= 1


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    values = KeptValues(tmp_path, SUBJECT)
    values.put(KEY, b"value")
    values.save()
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", full)
    values.put(OTHER, b"value")
    values.save()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before
    assert values.get(OTHER) == b"value"


def test_a_process_finds_what_another_one_has_kept_since_it_looked(tmp_path: Path) -> None:
    one, another = KeptValues(tmp_path, SUBJECT), KeptValues(tmp_path, SUBJECT)
    assert one.get(KEY) is None
    another.put(KEY, b"found")
    another.save()
    assert one.get(KEY) == b"found"
    one.put(OTHER, b"too")
    one.save()
    assert KeptValues(tmp_path, SUBJECT).get(KEY) == b"found"
    assert another.get(OTHER) == b"too"


def test_rings_are_read_only_with_as_many_groups_as_are_asked_for() -> None:
    placement = contiguous(FRONTIER, 64)
    found = found_on(FRONTIER, placement)
    shapes = [axis.shape for axis in axes_of(64)]
    assert plain(unpacked(packed(found), shapes) or []) == plain(found)
    assert unpacked(packed(found), shapes[::-1]) is None
    assert unpacked(packed(found), shapes[:-1]) is None
    assert unpacked(packed(found)[:-4], shapes) is None
    assert unpacked(packed(found), [(groups, 2 * ranks) for groups, ranks in shapes]) is None


def test_no_module_unpickles_anything() -> None:
    root = Path(kept_results.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "marshal", "shelve", "dill"} & set(names), path
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("np.load", "eval", "exec"), path
