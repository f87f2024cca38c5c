"""`simgpt run --save`: lost ranks, damaged checkpoints, full disks, and the same losses after."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints.folder import name_of, steps_in
from executor.checkpoints.manifest import rank_file
from executor.checkpoints.ownership import LOCK
from simgpt.running import measured_steps
from tests.executor.test_launch import children
from tests.simgpt.face import Said, simgpt

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STEPS = 8
WORDS = ("run", "tiny-30k", "--no-predict", "--batch", "8", "--timeout", "250")
SAVED = ("--save-every", "2", "--steps", str(STEPS))
Losses = list[float]


def run(*words: str) -> Said:
    return simgpt(*WORDS, "--device", "cpu", "--json", *words)


def record_of(said: Said) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(said.out)
    return record


def losses_of(*words: str) -> Losses:
    said = run(*words)
    assert said.status == 0, said.err
    losses: Losses = record_of(said)["losses"]
    return losses


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Losses]:
    """A folder with the checkpoints of steps 4 and 6 of a run in float64, and its losses."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    plan = "data=2,zero=1,precision=fp64"
    losses = losses_of("--plan", plan, "--save", str(folder), *SAVED)
    shutil.rmtree(folder / name_of(STEPS))
    return folder, losses


@pytest.fixture
def folder(saved: tuple[Path, Losses], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "run"))


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


@pytest.mark.parametrize("rule", ["mezo", "fedkseed-step"])
def test_a_run_without_gradients_goes_on_to_the_bit(rule: str, tmp_path: Path) -> None:
    """In bf16, whose roundings every replica has to do alike; under another plan, but for these."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    plan, words = f"data=2,z=2,optimizer={rule}", ("--lr", "1e-3", "--save-every", "4")
    whole = losses_of("--plan", plan, "--steps", "6", *words[:2])
    losses_of("--plan", plan, "--steps", "4", "--save", str(folder), *words)
    shutil.copytree(folder, copy)
    again = ("--steps", "6", "--resume", *words)
    assert losses_of("--plan", plan, "--save", str(folder), *again) == whole[4:]
    other = f"data=2,pipe=2,micro_batch=2,optimizer={rule}"
    elsewhere = losses_of("--plan", other, "--save", str(copy), *again)
    assert elsewhere == pytest.approx(whole[4:], rel=1e-3)


def test_a_resumed_run_has_the_losses_of_one_that_was_not_interrupted(
    saved: tuple[Path, Losses], folder: Path
) -> None:
    plan = "data=2,zero=1,precision=fp64"
    assert saved[1] == losses_of("--plan", plan, "--steps", str(STEPS))
    said = run("--plan", plan, "--save", str(folder), "--resume", *SAVED)
    record = record_of(said)
    assert record["losses"] == saved[1][6:]
    assert [step["step"] for step in record["steps"]] == [7, 8]
    assert (record["resumed_at_step"], record["finished"]) == (6, True)
    assert f"resumed at step 6 ({folder / name_of(6)})" in said.err
    assert steps_in(folder) == [8, 6, 4]


@pytest.mark.parametrize("plan", ["data=1", "x=2,y=2", "pipe=2,data=2,zero=3,micro_batch=2", "z=4"])
def test_a_run_goes_on_under_another_plan_to_1e_9(
    plan: str, saved: tuple[Path, Losses], folder: Path
) -> None:
    words = ("--plan", f"{plan},precision=fp64", "--save", str(folder), "--resume", *SAVED)
    assert losses_of(*words) == pytest.approx(saved[1][6:], abs=1e-9)


def test_bf16_goes_on_from_its_master_copies_to_the_bit(tmp_path: Path) -> None:
    folder, plan = tmp_path / "run", "x=2,data=2,zero=3"
    losses = losses_of("--plan", plan, "--save", str(folder), *SAVED, "--keep", "2")
    assert steps_in(folder) == [8, 6]
    shutil.rmtree(folder / name_of(STEPS))
    words = ("--plan", plan, "--save", str(folder), "--resume", *SAVED)
    assert losses_of(*words) == losses[6:]


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_taken(
    saved: tuple[Path, Losses], folder: Path
) -> None:
    file = folder / name_of(6) / rank_file(0)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    plan = "data=2,zero=1,precision=fp64"
    said = run("--plan", plan, "--save", str(folder), "--resume", *SAVED)
    assert record_of(said)["losses"] == saved[1][4:]
    assert f"damaged checkpoint set aside: {file} is not what was written" in said.err
    assert "resumed at step 4" in said.err
    assert (folder / f"{name_of(6)}.damaged").is_dir()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGKILL, r"rank 1 was killed by SIGKILL; all ranks were stopped; restart 1 of 1"),
        (signal.SIGSTOP, r"rank 1 has been stopped for 0 s .*; restart 1 of 1"),
    ],
)
def test_a_lost_rank_is_named_and_the_run_goes_on_by_itself(
    number: signal.Signals,
    sentence: str,
    saved: tuple[Path, Losses],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.launching.watch.STOPPED_S", 0.5)
    when(5, lambda: os.kill(children()[1], number), monkeypatch)
    plan, folder = "data=2,zero=1,precision=fp64", tmp_path / "run"
    said = run("--plan", plan, "--save", str(folder), *SAVED, "--max-restarts", "1")
    assert said.status == 0, said.err
    assert re.search(sentence, said.err), said.err
    assert re.search(r"resumed at step [246] ", said.err)
    assert record_of(said)["losses"] == saved[1]


def test_a_lost_run_leaves_the_steps_that_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when(3, lambda: os.kill(children()[0], signal.SIGKILL), monkeypatch)
    out = tmp_path / "run.json"
    said = run("--plan", "data=2", "--steps", "100000", "-o", str(out))
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
    said = run("--plan", "data=2", *words)
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
    said = run("--plan", "data=2", "--save", str(folder), *SAVED)
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
    said = run("--plan", "data=2", "--steps", "5")
    assert said.status == 0, said.err
    assert re.search(r"^rank 1 takes \d+\.\d times the median$", said.err, re.M), said.err


def test_a_lost_loss_names_the_last_checkpoint_before_it(tmp_path: Path) -> None:
    """The weights after step 1 gave the loss of step 2: theirs is set aside."""
    folder = tmp_path / "run"
    words = ("--lr", "1e30", "--save", str(folder), "--save-every", "1", "--steps", "4")
    said = run("--plan", "data=1,precision=fp32", *words)
    assert said.status == 6
    assert record_of(said)["newest_checkpoint"] is None
    assert {each.name for each in folder.iterdir()} == {LOCK, f"{name_of(1)}.diverged"}


def test_what_torchrun_starts_again_goes_on(
    saved: tuple[Path, Losses], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    told = {**launched, "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": "1"}
    for key, value in told.items():
        monkeypatch.setenv(key, value)
    said = run("--plan", "data=1,precision=fp64", "--save", str(folder), *SAVED)
    assert said.status == 0, said.err
    assert "resumed at step 6" in said.err
    assert record_of(said)["losses"] == pytest.approx(saved[1][6:], abs=1e-9)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "has checkpoints up to step 6; --resume goes on from there, or name another folder"),
        (("--resume", "--seed", "1"), "was written with --seed 0, and this run has --seed 1"),
        (("--resume", "--steps", "6"), "has step 6 in it already; --steps 6 leaves nothing to"),
    ],
)
def test_a_folder_of_another_run_is_refused(
    words: tuple[str, ...], sentence: str, folder: Path
) -> None:
    said = simgpt(*WORDS, "--save", str(folder), *words)
    assert said.status == 2
    assert sentence in said.sentence
