"""`simgpt run` that loses a rank, its disk or its time, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints.folder import name_of, steps_in
from executor.checkpoints.ownership import LOCK
from simgpt.running import measured_steps
from tests.executor.test_launch import children
from tests.simgpt.face import Said, simgpt

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STEPS = 8
WORDS = ("run", "tiny-30k", "--no-predict", "--batch", "8", "--timeout", "250")
SAVED = ("--save-every", "2", "--steps", str(STEPS))


def run(*words: str) -> Said:
    return simgpt(*WORDS, "--device", "cpu", "--json", *words)


def record_of(said: Said) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(said.out)
    return record


def when(step: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when a step is reported to the command."""
    add = measured_steps.MeasuredSteps.add
    done: list[int] = []

    def added(self: Any, found: dict[str, Any], line: str) -> None:
        add(self, found, line)
        if found["step"] == step and not done:
            done.append(step)
            act()

    monkeypatch.setattr(measured_steps.MeasuredSteps, "add", added)


def in_ranks(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the ranks run a source before anything else."""
    (folder / "sitecustomize.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.getcwd()]))


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (signal.SIGKILL, r"rank 1 .*SIGKILL.*restart 1 of 1"),
        (signal.SIGSTOP, r"rank 1 .*stopped.*restart 1 of 1"),
    ],
)
def test_a_lost_rank_is_named_and_the_run_goes_on_by_itself(
    number: signal.Signals,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.launching.watch.STOPPED_S", 0.5)
    plan, folder = "dp=2,zero=1,precision=fp64", tmp_path / "run"
    whole = record_of(run("--plan", plan, "--steps", str(STEPS)))
    when(5, lambda: os.kill(children()[1], number), monkeypatch)
    said = run("--plan", plan, "--save", str(folder), *SAVED, "--max-restarts", "1")
    assert said.status == 0, said.err
    assert re.search(named, said.err), said.err
    record = record_of(said)
    assert record["resumed_at_step"] in (2, 4, 6)
    assert record["losses"] == whole["losses"]


def test_a_lost_run_leaves_the_steps_that_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when(3, lambda: os.kill(children()[0], signal.SIGKILL), monkeypatch)
    out = tmp_path / "run.json"
    said = run("--plan", "dp=2", "--steps", "100000", "-o", str(out))
    assert said.status == 5
    record = json.loads(out.read_text(encoding="utf-8"))
    assert not record["finished"]
    assert [step["step"] for step in record["steps"]][:3] == [1, 2, 3]
    known = {"step", "loss", "seconds", "lr", "grad_norm", "peak_bytes"}
    assert known == set(record["steps"][0])


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGUSR1, 138), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_ends_a_run_after_a_step_that_is_saved(
    number: signal.Signals, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when(2, lambda: os.kill(os.getpid(), number), monkeypatch)
    folder, trace = tmp_path / "run", tmp_path / "trace.json"
    words = ("--steps", "100000", "--save", str(folder), "--trace", str(trace))
    said = run("--plan", "dp=2", *words)
    record = record_of(said)
    assert (said.status, record["stopped_by"]) == (status, number.name)
    assert steps_in(folder) == [record["stopped_at_step"]] == [len(record["steps"])]
    assert trace.exists()


# The disk of rank 1 is full from its second save on.
FULL = """
import errno, sys
if sys.orig_argv[-4:-1] == ["train", "1", "2"]:
    import executor.checkpoints.writer as writing
    write, files = writing.write_tensors, []
    def full(path, tensors):
        files.append(path)
        if len(files) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, tensors)
    writing.write_tensors = full
"""


def test_a_full_disk_costs_checkpoints_but_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_ranks(FULL, tmp_path, monkeypatch)
    folder = tmp_path / "run"
    said = run("--plan", "dp=2", "--save", str(folder), *SAVED)
    assert said.status == 5, said.err
    assert len(record_of(said)["steps"]) == STEPS
    why = "was not written: rank 1: No space left on device; the newest is step-00000002"
    assert f"the checkpoint of step 4 {why}; training goes on" in said.err
    assert said.err.splitlines()[-1].startswith(f"simgpt: the checkpoint of step 8 {why}")
    assert {each.name for each in folder.iterdir()} == {LOCK, name_of(2)}


# Every matmul of rank 1 takes 20 ms more.
SLOW = """
import sys, time
if sys.orig_argv[-4:-1] == ["train", "1", "2"]:
    import executor.prepared as prepared
    multiply = prepared.KERNELS["matmul"]
    def late(*how):
        time.sleep(0.02)
        multiply(*how)
    prepared.KERNELS = {**prepared.KERNELS, "matmul": late}
"""


def test_a_slow_rank_is_named_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_ranks(SLOW, tmp_path, monkeypatch)
    said = run("--plan", "dp=2", "--steps", "5")
    assert said.status == 0, said.err
    assert re.search(r"^rank 1 takes \d+\.\d times the median$", said.err, re.M), said.err
