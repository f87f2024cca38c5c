"""SweepResources may die and sweeps may be killed: no row is lost, none is there twice."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from simgpt.studies.errors import WorkersError
from simgpt.studies.evaluate import Batch, Row
from simgpt.studies.inputs import Inputs, inputs_of
from simgpt.studies.journal import RESULTS
from simgpt.studies.study import Study
from simgpt.studies.sweep_rows import SweepResources, sweep_into
from simgpt.studies.workers import in_order
from simulator import pool
from tests.messages import names
from tests.simgpt.face import simgpt
from tests.simgpt.studies.processes import (
    PATIENCE_S,
    begin,
    children,
    count,
    runs,
    wait_for_rows,
    write_study,
)
from tests.simgpt.studies.worlds import SMALL, study

LAYERS = 40  # 6 rows each


class Shuffled:
    """SweepResources that finishes what it was given in any order."""

    room = 5

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._under_way: list[tuple[int, Batch]] = []
        self.most = 0

    def start(self, number: int, batch: Batch) -> None:
        self._under_way.append((number, batch))
        self.most = max(self.most, len(self._under_way))

    def finished(self) -> tuple[int, list[Row]]:
        chosen = self._random.randrange(len(self._under_way))
        number, batch = self._under_way.pop(chosen)
        return number, [{"id": point_id} for point_id, _ in batch]


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_in_order_whichever_is_finished_first(seed: int) -> None:
    workers = Shuffled(seed)
    batches: list[Batch] = [[(2 * n, {}), (2 * n + 1, {})] for n in range(17)]
    assert [row["id"] for row in in_order(workers, batches)] == list(range(34))
    assert workers.most == workers.room


@cache
def world() -> tuple[Study, Inputs, bytes]:
    asked = study(SMALL, sweep={"layers": [1, 2, 3], "tp": [1, 2, 3], "zero": [0, 1]})
    inputs = inputs_of(asked)
    return asked, inputs, swept(asked, inputs, SweepResources(), lambda _: None)


def swept(
    asked: Study, inputs: Inputs, workers: SweepResources, progress: Callable[[int], None]
) -> bytes:
    with TemporaryDirectory() as folder:
        sweep_into(Path(folder), asked, inputs, workers, progress)
        return (Path(folder) / RESULTS).read_bytes()


def kill_a_worker() -> None:
    for process in multiprocessing.active_children():
        process.kill()
        return


def test_two_workers_make_the_same_bytes_though_each_is_killed() -> None:
    asked, inputs, whole = world()
    killed = []

    def progress(done: int) -> None:
        if done in (0, 4):
            kill_a_worker()
            killed.append(done)

    assert swept(asked, inputs, SweepResources(2), progress) == whole
    assert killed == [0, 4]
    assert multiprocessing.active_children() == []


def test_rows_that_end_every_worker_end_the_sweep_with_a_sentence(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    over = threading.Event()

    def kill_all() -> None:
        while not over.is_set():
            kill_a_worker()
            time.sleep(0.01)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with pytest.raises(WorkersError, check=names("row", "3 workers", "signal 9")):
            sweep_into(tmp_path, asked, inputs, SweepResources(2), lambda _: None)
    finally:
        over.set()
        killer.join(PATIENCE_S)
    assert multiprocessing.active_children() == []


def test_workers_that_say_nothing_are_not_waited_for_without_end(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    with pytest.raises(WorkersError, check=names("0 s")):
        sweep_into(tmp_path, asked, inputs, SweepResources(2, timeout_s=1e-3), lambda _: None)
    assert multiprocessing.active_children() == []


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_workers_of_another_version_are_refused(tmp_path: Path) -> None:
    asked, inputs, _ = world()
    other = Inputs(inputs.models, inputs.machines, inputs.stacks, inputs.digests, "another")
    with pytest.raises(WorkersError, check=names("version")):
        sweep_into(tmp_path, asked, other, SweepResources(2), lambda _: None)


@pytest.mark.slow
def test_workers_end_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    sweep = begin(write_study(tmp_path, LAYERS), tmp_path / "out", "--workers", "2")
    wait_for_rows(sweep, tmp_path / "out" / RESULTS, 3)
    workers = children(sweep.pid)
    assert len(workers) >= 2
    sweep.kill()
    sweep.communicate(timeout=PATIENCE_S)
    wait_for_the_end_of(workers)


def wait_for_the_end_of(workers: list[int]) -> None:
    end = time.monotonic() + PATIENCE_S
    while any(map(runs, workers)):
        assert time.monotonic() < end, "workers outlive their sweep"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        pytest.param(*(signal.SIGINT, 130, ["simgpt:", "interrupted"]), marks=pytest.mark.slow),
        (signal.SIGTERM, 143, ["simgpt:", "ended", "by", "SIGTERM"]),
        (signal.SIGHUP, 129, ["simgpt:", "ended", "by", "SIGHUP"]),
    ],
)
def test_a_sweep_that_is_told_to_end_says_so_and_takes_its_workers_along(
    number: signal.Signals, status: int, words: list[str], tmp_path: Path
) -> None:
    """As a terminal or Slurm tells all of its processes."""
    sweep = begin(write_study(tmp_path, LAYERS), tmp_path / "out", "--workers", "2", own_group=True)
    wait_for_rows(sweep, tmp_path / "out" / RESULTS, 3)
    workers = children(sweep.pid)
    os.killpg(sweep.pid, number)
    _, err = sweep.communicate(timeout=PATIENCE_S)
    assert (sweep.returncode, err.split()) == (status, words)
    wait_for_the_end_of(workers)


@pytest.mark.slow
def test_ctrl_c_while_workers_are_starting_is_one_sentence(tmp_path: Path) -> None:
    """A terminal sends it to all processes, those that are importing too."""
    sweep = begin(write_study(tmp_path, LAYERS), tmp_path / "out", "--workers", "2", own_group=True)
    end = time.monotonic() + PATIENCE_S
    while len(workers := [w for w in children(sweep.pid) if b"spawn_main" in command_of(w)]) < 2:
        assert time.monotonic() < end
        time.sleep(0.001)
    os.killpg(sweep.pid, signal.SIGINT)
    _, err = sweep.communicate(timeout=PATIENCE_S)
    assert (sweep.returncode, err.split()) == (130, ["simgpt:", "interrupted"])
    wait_for_the_end_of(workers)


def kill_and_resume(
    tmp_path: Path, layers: int, moments: list[int], workers: int, resumed_by: int
) -> None:
    """Kill a sweep once so many rows are there, go on, and compare with one that nobody killed."""
    asked = write_study(tmp_path, layers)
    assert simgpt("sweep", str(asked), "-o", str(tmp_path / "whole")).status == 0
    whole = (tmp_path / "whole" / RESULTS).read_bytes()
    assert whole.count(b"\n") == 6 * layers
    results = tmp_path / "killed" / RESULTS
    for moment in sorted(moments):
        before = count(results)
        sweep = begin(asked, tmp_path / "killed", "--workers", str(workers))
        wait_for_rows(sweep, results, moment)
        sweep.kill()
        sweep.communicate(timeout=PATIENCE_S)
        assert before <= count(results) < 6 * layers, "it was through before it was killed"
    words = ("-o", str(tmp_path / "killed"), "--workers", str(resumed_by))
    assert simgpt("sweep", str(asked), *words).status == 0
    assert results.read_bytes() == whole
    kept = [
        json.loads((tmp_path / each / "study.json").read_bytes()) for each in ("whole", "killed")
    ]
    commands = [study["asked"].pop("command") for study in kept]
    assert kept[0] == kept[1]
    assert all(command.startswith("simgpt sweep ") for command in commands)


@pytest.mark.slow
def test_a_sweep_killed_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 12, [random.Random(2).randrange(1, 20)], 2, resumed_by=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_killed_twice_and_resumed_gives_the_same_bytes(
    workers: int, tmp_path: Path
) -> None:
    kill_and_resume(tmp_path, 12, [0, random.Random(workers).randrange(1, 20)], workers, workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_sweep_killed_at_ten_random_moments_gives_the_same_bytes(
    workers: int, tmp_path: Path
) -> None:
    draw = random.Random(workers)
    kill_and_resume(tmp_path, LAYERS, [draw.randrange(0, 180) for _ in range(10)], workers, workers)


def test_a_worker_that_cannot_start_ends_the_sweep_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    asked, inputs, _ = world()
    monkeypatch.setattr(pool, "_Worker", refused)
    with pytest.raises(WorkersError, check=names(os.strerror(errno.EAGAIN))):
        sweep_into(tmp_path, asked, inputs, SweepResources(2), lambda _: None)
