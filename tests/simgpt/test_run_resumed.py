"""`simgpt run --resume`: the same losses, log and weights as of a run that was not stopped."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from executor.checkpoints.folder import name_of, steps_in
from executor.checkpoints.manifest import rank_file
from executor.checkpoints.ownership import LOCK
from executor.errors import LaunchError
from executor.launching import launch
from executor.launching.task_specs import Job, task_line, task_of
from tests.executor.resumed import spoil
from tests.simgpt.face import Said, simgpt

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("forked_ranks")]

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
    plan = "dp=2,zero=1,precision=fp64"
    losses = losses_of("--plan", plan, "--save", str(folder), *SAVED)
    shutil.rmtree(folder / name_of(STEPS))
    return folder, losses


@pytest.fixture
def folder(saved: tuple[Path, Losses], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mezo", "fedkseed-step"])
def test_a_run_without_gradients_goes_on_to_the_bit(rule: str, tmp_path: Path) -> None:
    """In bf16, whose roundings every replica has to do alike; under another plan, but for these."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    plan, words = f"dp=2,z=2,optimizer={rule}", ("--lr", "1e-3", "--save-every", "4")
    whole = losses_of("--plan", plan, "--steps", "6", *words[:2])
    losses_of("--plan", plan, "--steps", "4", "--save", str(folder), *words)
    shutil.copytree(folder, copy)
    again = ("--steps", "6", "--resume", *words)
    assert losses_of("--plan", plan, "--save", str(folder), *again) == whole[4:]
    other = f"dp=2,pp=2,mbs=2,optimizer={rule}"
    elsewhere = losses_of("--plan", other, "--save", str(copy), *again)
    assert elsewhere == pytest.approx(whole[4:], rel=1e-3)


def test_a_resumed_run_has_the_losses_of_one_that_was_not_interrupted(
    saved: tuple[Path, Losses], folder: Path
) -> None:
    plan = "dp=2,zero=1,precision=fp64"
    assert saved[1] == losses_of("--plan", plan, "--steps", str(STEPS))
    said = run("--plan", plan, "--save", str(folder), "--resume", *SAVED)
    record = record_of(said)
    assert record["losses"] == saved[1][6:]
    assert [step["step"] for step in record["steps"]] == [7, 8]
    assert (record["resumed_at_step"], record["finished"]) == (6, True)
    assert str(folder / name_of(6)) in said.err
    assert steps_in(folder) == [8, 6, 4]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["dp=1", "tp=2,y=2", "pp=2,dp=2,zero=3,mbs=2", "z=4"])
def test_a_run_goes_on_under_another_plan_to_1e_9(
    plan: str, saved: tuple[Path, Losses], folder: Path
) -> None:
    words = ("--plan", f"{plan},precision=fp64", "--save", str(folder), "--resume", *SAVED)
    assert losses_of(*words) == pytest.approx(saved[1][6:], abs=1e-9)


@pytest.mark.slow
def test_bf16_goes_on_from_its_master_copies_to_the_bit(tmp_path: Path) -> None:
    folder, plan = tmp_path / "run", "tp=2,dp=2,zero=3"
    losses = losses_of("--plan", plan, "--save", str(folder), *SAVED, "--keep", "2")
    assert steps_in(folder) == [8, 6]
    shutil.rmtree(folder / name_of(STEPS))
    words = ("--plan", plan, "--save", str(folder), "--resume", *SAVED)
    assert losses_of(*words) == losses[6:]


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_taken(
    saved: tuple[Path, Losses], folder: Path
) -> None:
    file = folder / name_of(6) / rank_file(0)
    spoil(file)
    plan = "dp=2,zero=1,precision=fp64"
    said = run("--plan", plan, "--save", str(folder), "--resume", *SAVED)
    record = record_of(said)
    assert record["losses"] == saved[1][4:]
    assert record["resumed_at_step"] == 4
    assert str(file) in said.err
    assert (folder / f"{name_of(6)}.damaged").is_dir()


def test_a_lost_loss_names_the_last_checkpoint_before_it(tmp_path: Path) -> None:
    """The weights after step 1 gave the loss of step 2: theirs is set aside."""
    folder = tmp_path / "run"
    words = ("--lr", "1e30", "--save", str(folder), "--save-every", "1", "--steps", "4")
    said = run("--plan", "dp=1,precision=fp32", *words)
    assert said.status == 6
    assert record_of(said)["newest_checkpoint"] is None
    assert {each.name for each in folder.iterdir()} == {LOCK, f"{name_of(1)}.diverged"}


def test_what_torchrun_starts_again_goes_on(saved: tuple[Path, Losses], folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    told = {**launched, "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": "1"}
    with patch.dict(os.environ, told):  # and whatever a rank sets in its process's
        said = run("--plan", "dp=1,precision=fp64", "--save", str(folder), *SAVED)
    assert said.status == 0, said.err
    record = record_of(said)
    assert record["resumed_at_step"] == 6
    assert record["losses"] == pytest.approx(saved[1][6:], abs=1e-9)


def test_a_run_that_loses_its_ranks_goes_on_by_itself_and_has_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ranks are lost after step 3, whose state was saved after step 2."""
    start, given, log = launch.launch, list[Job](), tmp_path / "log"

    def lost(task: str, description: str, **how: Any) -> dict[str, Any]:
        job = task_of(Job, description)
        given.append(job)
        if len(given) > 1:
            return start(task, description, **how)
        start(task, task_line(replace(job, steps=3)), **how)
        shutil.rmtree(tmp_path / "run" / name_of(3))
        raise LaunchError("rank 0 was killed")

    words = ("--plan", "dp=1", "--steps", "4", "--save-every", "2")
    whole = losses_of(*words, "--save", str(tmp_path / "whole"))
    monkeypatch.setattr(launch, "launch", lost)
    saves = ("--save", str(tmp_path / "run"), "--log", str(log))
    said = run(*words, *saves, "--max-restarts", "1")
    record = record_of(said)
    assert (said.status, record["resumed_at_step"]) == (0, 2)
    assert len(given) == 2
    assert [line["step"] for line in lines_of(log)] == [1, 2, 3, 4]
    assert record["losses"] == [line["loss"] for line in lines_of(log)] == whole
    assert "rank 0 was killed" in said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), ("step 6", "--resume")),
        (("--resume", "--seed", "1"), ("--seed 0", "--seed 1", "--resume-anyway")),
        (("--resume", "--steps", "6"), ("step 6", "--steps 6")),
        (("--resume-anyway", "--steps", "6"), ("step 6", "--steps 6")),
    ],
)
def test_a_folder_of_another_run_is_refused(
    words: tuple[str, ...], named: tuple[str, ...], folder: Path
) -> None:
    said = simgpt(*WORDS, "--save", str(folder), *words)
    assert said.status == 2
    for each in named:
        assert each in said.sentence
    assert steps_in(folder) == [6, 4]


def lines_of(log: Path) -> list[dict[str, float]]:
    """What a log says of each step, but for times and memory."""
    kept = ("step", "loss", "grad_norm", "lr", "eval_loss")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [{key: line[key] for key in kept if key in line} for line in lines]


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("tiny-30k", "dp=1,recipe=mxfp8,offload=optimizer"),
        pytest.param("tiny-30k", "cp=2", marks=pytest.mark.slow),
        pytest.param("tiny-mixtral-130k", "dp=2,ep=2,zero=1", marks=pytest.mark.slow),
    ],
)
def test_log_evaluations_and_exported_weights_are_those_of_one_run(
    model: str, plan: str, tmp_path: Path
) -> None:
    """Steps 1 and 2 of 4 in a run of their own, whose log the next one goes on with. The rate is
    constant, so that the first run need not know of the second."""
    words = ["run", model, "--plan", plan, "--batch", "4", "--no-predict", "--device", "cpu"]
    words += ["--eval-data", "README.md", "--eval-every", "2", "--eval-batches", "1", "--json"]
    words += ["--lr", "1e-2", "--warmup-steps", "1", "--timeout", "250"]

    def given(name: str) -> tuple[str, ...]:
        at = tmp_path / name
        return ("--save", str(at / "run"), "--log-file", str(at / "log"))

    def ends(name: str) -> tuple[str, ...]:
        return ("--steps", "4", "--export-weights", str(tmp_path / name / "weights"))

    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = simgpt(*words, *given("whole"), *ends("whole"))
    first = simgpt(*words, *given("parts"), "--steps", "2")
    second = simgpt(*words, *given("parts"), *ends("parts"), "--resume")
    assert [each.status for each in (whole, first, second)] == [0, 0, 0], second.err
    logs = [lines_of(tmp_path / name / "log") for name in ("whole", "parts")]
    assert [line["step"] for line in logs[1]] == [1, 2, 3, 4]
    assert ["eval_loss" in line for line in logs[1]] == [False, True, False, True]
    assert logs[1] == logs[0]
    records = [record_of(each) for each in (whole, first, second)]
    assert records[1]["losses"] + records[2]["losses"] == records[0]["losses"]
    assert records[2]["evaluations"] == records[0]["evaluations"][1:]
    weights = [tmp_path / name / "weights" / "model.safetensors" for name in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
