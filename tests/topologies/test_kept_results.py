"""Rings kept from one run to the next: the same answers, whatever has happened to the files."""

from __future__ import annotations

import ast
import os
import pickle
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from topologies import kept_results
from topologies.files.cache_folder import cache_folder
from topologies.kept_results import NAME, KeptResults, digest_of
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous, random
from topologies.routing import rings
from topologies.routing.rings import Found, packed, rings_together, unpacked
from topologies.session import Session

FRONTIER = load_machine("frontier")
SLOWER = with_settings(FRONTIER, {"node.nics.bandwidth": "12.5 GB/s"})
KEY, OTHER = digest_of(b"key"), digest_of(b"other")
WRITER = """
import sys
from topologies.kept_results import KeptResults, digest_of
from topologies.session import Session
own = sys.argv[1].encode()
with Session():
    for number in range(100):
        results = KeptResults()
        for known in range(number):
            assert results.get(digest_of(own, bytes([known]))) == own * 1000, known
        results.put(digest_of(own, bytes([number])), own * 1000)
        results.save()
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


def test_what_a_session_finds_is_written_when_it_is_left(folder: Path) -> None:
    placement = contiguous(FRONTIER, 64)
    with Session() as session:
        rings_together(FRONTIER, placement, axes_of(64))
        with session:
            rings_together(FRONTIER, placement, axes_of(64)[:1])
        assert not folder.exists()
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert len(rows_of(folder / NAME)) == 2


def rows_of(path: Path) -> dict[bytes, bytes]:
    """The results in a database by key."""
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT key, value FROM kept ORDER BY rowid"))


def changed_by(path: Path, statement: str, *given: object) -> None:
    """Change a database as only its owner can."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, given)


def kept(key: bytes) -> bytes | None:
    """What a session of its own finds."""
    with Session():
        return KeptResults().get(key)


def keep(values: dict[bytes, bytes]) -> None:
    """Have a session of its own keep results."""
    with Session():
        results = KeptResults()
        for key, value in values.items():
            results.put(key, value)
        results.save()


def cut(path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path, data: bytes) -> None:
    """Another bit in the middle of a result."""
    (value,) = rows_of(path).values()
    at = data.index(value[:64]) + 32
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def pickled(path: Path, data: bytes) -> None:
    path.write_bytes(pickle.dumps({"rings": data}))


def of_other_rings(path: Path, _: bytes) -> None:
    """A whole result, with its digest, under the key of another."""
    (own,) = rows_of(path)
    found_on(SLOWER, contiguous(SLOWER, 256))
    changed_by(path, "UPDATE kept SET key = ? WHERE key = ?", KEY, own)
    changed_by(path, "UPDATE kept SET key = ? WHERE key != ?", own, KEY)


def of_no_rings(path: Path, _: bytes) -> None:
    """A whole result of the right key that is not of rings."""
    keep(dict.fromkeys(rows_of(path), b"no rings"))


def of_another_kind(path: Path, _: bytes) -> None:
    changed_by(path, "UPDATE kept SET value = 1, digest = 'text'")


def of_another_table(path: Path, _: bytes) -> None:
    changed_by(path, "DROP TABLE kept")
    changed_by(path, "CREATE TABLE kept (key, other)")


def of_a_view(path: Path, _: bytes) -> None:
    changed_by(path, "DROP TABLE kept")
    changed_by(path, "CREATE VIEW kept AS SELECT x'00' AS key, 1 AS value, 2 AS digest")


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


def link(path: Path, _: bytes) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = [
    *(cut, flipped, pickled, of_other_rings, of_no_rings, of_another_kind, of_another_table),
    *(of_a_view, huge, emptied, pipe, directory, link),
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


def test_every_byte_of_a_database_is_guarded(folder: Path) -> None:
    values = {KEY: b"value" * 20, OTHER: b""}
    keep(values)
    data = (folder / NAME).read_bytes()
    for at in range(0, len(data), 3):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :]):
            (folder / NAME).write_bytes(changed)
            with Session():
                results = KeptResults()
                for key, value in values.items():
                    assert results.get(key) in (None, value), at


@pytest.mark.parametrize("where", ["/dev/null", "/proc/simgpt"])
def test_where_nothing_can_be_written_answers_are_the_same(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = contiguous(FRONTIER, 64)
    expected = plain(found_on(FRONTIER, placement))
    monkeypatch.setenv("SIMGPT_CACHE", where)
    for _ in range(2):
        assert plain(found_on(FRONTIER, placement)) == expected


def test_another_network_placement_or_code_is_another_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, placement = counted(monkeypatch), contiguous(FRONTIER, 256)
    expected = plain(found_on(FRONTIER, placement))
    assert plain(found_on(SLOWER, placement)) != expected
    found_on(FRONTIER, random(FRONTIER, 256, seed=5))
    monkeypatch.setattr(kept_results, "code_digest", lambda: digest_of(b"another version"))
    assert plain(found_on(FRONTIER, placement)) == expected
    assert len(calls) == len(rows_of(folder / NAME)) == 4


def test_machines_that_differ_in_their_software_alone_share_their_rings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, placement = counted(monkeypatch), contiguous(FRONTIER, 64)
    other = with_settings(FRONTIER, {"device.launch": "50 us", "software.compute_share": 0.5})
    assert plain(found_on(FRONTIER, placement)) == plain(found_on(other, placement))
    assert len(calls) == len(rows_of(folder / NAME)) == 1


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


def test_what_is_kept_takes_a_bounded_part_of_the_disk_and_the_oldest_goes_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_results, "MOST_BYTES", 100_000)
    keys = [digest_of(bytes([number])) for number in range(200)]
    for key in keys:
        keep({key: bytes(3000)})
        assert kept(key) is not None
    assert (folder / NAME).stat().st_size <= 110_000
    left = [kept(key) is not None for key in keys]
    assert left == sorted(left)
    assert 10 < sum(left) < 50


def test_a_session_keeps_a_bounded_part_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_results, "MOST_NEW_BYTES", 1000)
    with Session():
        results = KeptResults()
        for number in range(20):
            results.put(digest_of(bytes([number])), bytes(100))
            assert len(results._new) <= 10
        assert len(rows_of(folder / NAME)) == 11
        assert results.get(digest_of(bytes([0]))) == bytes(100)


def test_files_of_others_in_the_folder_are_left_alone(folder: Path) -> None:
    """The user's own folder may have been named."""
    folder.mkdir(mode=0o700, parents=True)
    others = [folder / name for name in ("thesis.tex", "results.sqlite.old", "results")]
    for path in others:
        path.write_bytes(b"kept")
    (folder / NAME).write_bytes(b"damaged")
    keep({KEY: bytes(10)})
    assert all(path.read_bytes() == b"kept" for path in others)
    assert kept(KEY) == bytes(10)


def test_processes_that_write_one_database_at_once_lose_nothing(folder: Path) -> None:
    names = [b"a", b"b", b"c"]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in names]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert [path.name for path in folder.iterdir()] == [NAME]
    keys = {digest_of(name, bytes([number])) for name in names for number in range(100)}
    assert rows_of(folder / NAME).keys() == keys


def test_what_a_killed_process_has_left_half_written_is_taken_back(folder: Path) -> None:
    keep({KEY: b"value"})
    killed = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size=1")
database.execute("BEGIN")
database.execute("UPDATE kept SET value = x'00', digest = x'00'")
for number in range(100):
    database.execute("INSERT INTO kept VALUES (?, ?, ?)", (bytes([number]), bytes(9999), b""))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", killed, str(folder / NAME)], check=False)
    assert len(list(folder.iterdir())) == 2  # the journal too
    assert kept(KEY) == b"value"
    assert len(rows_of(folder / NAME)) == 1


def test_a_database_that_is_busy_for_long_neither_fails_nor_stops_a_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_results, "_BUSY_S", 0.1)
    keep({KEY: b"value"})
    with Session(), closing(sqlite3.connect(folder / NAME, isolation_level=None)) as other:
        results = KeptResults()
        other.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        assert [results.get(KEY) for _ in range(100)] == [None] * 100
        results.put(OTHER, b"too")
        results.save()
        assert time.monotonic() - begun < 5
        other.execute("ROLLBACK")
        results.save()
        assert (results.get(KEY), results.get(OTHER)) == (b"value", b"too")


def test_a_full_disk_leaves_the_database_as_it_was(folder: Path) -> None:
    keep({KEY: b"value"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Session():
        results = KeptResults()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
            results.put(OTHER, bytes(1 << 20))
            results.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert rows_of(folder / NAME) == {KEY: b"value"}
        assert results.get(OTHER) == bytes(1 << 20)


def test_a_process_finds_what_another_one_has_kept_since_it_looked(folder: Path) -> None:
    with Session():
        one = KeptResults()
        assert one.get(KEY) is None
        keep({KEY: b"found"})
        assert one.get(KEY) == b"found"
        one.put(OTHER, b"too")
        one.save()
    assert (kept(KEY), kept(OTHER)) == (b"found", b"too")


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
