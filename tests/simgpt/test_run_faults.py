"""`simgpt run` where disks are full, and where two runs or two texts meet in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints import ownership
from executor.checkpoints.folder import steps_in
from executor.checkpoints.ownership import owned
from executor.launching import launch
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("forked_ranks")]

WORDS = ("run", "tiny-30k", "--batch", "2", "--timeout", "250", "--no-predict", "--save-every", "2")


def run(folder: Path, *words: str) -> Said:
    return simgpt(*WORDS, "--save", str(folder), *words)


@pytest.mark.parametrize(
    "words", [("--log", "/dev/full"), ("-o", "/dev/full"), ("--json", "-o", "/dev/full")]
)
def test_what_cannot_be_written_costs_no_checkpoint_and_is_said_once(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    said = run(tmp_path / "run", "--steps", "4", *words)
    assert said.status == 5
    assert steps_in(tmp_path / "run") == [4, 2]
    before, last = said.err.splitlines()[:-1], said.err.splitlines()[-1]
    assert sum("/dev/full" in line for line in before) == 1
    assert "/dev/full" in last
    if "--json" in words:  # what found no room in the file is not lost
        record: dict[str, Any] = json.loads(said.out)
        assert len(record["losses"]) == 4


def test_a_trace_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    said = run(tmp_path / "run", "--steps", "2", "--json", "--trace", "/dev/full")
    assert said.status == 5
    assert len(json.loads(said.out)["losses"]) == 2


def test_a_run_whose_last_checkpoint_was_not_written_answers_and_ends_with_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, why = launch.launch, "the checkpoint of step 1 was not written"

    def unsaved(task: str, description: str, **how: Any) -> dict[str, Any]:
        return start(task, description, **how) | {"unsaved": why}

    monkeypatch.setattr(launch, "launch", unsaved)
    said = run(tmp_path / "run", "--steps", "1", "--json")
    assert said.status == 5
    assert len(json.loads(said.out)["losses"]) == 1
    assert_names(said.err.splitlines()[-1], why)


def test_the_log_of_a_new_run_replaces_whatever_the_file_had(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("lines of another program\n")
    assert run(tmp_path / "run", "--steps", "1", "--log", str(log)).status == 0
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1]


def test_a_folder_that_another_run_saves_into_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "PATIENCE_S", 0.0)
    run(tmp_path / "run", "--steps", "2")
    for words in ((), ("--resume",), ("--resume-anyway",)):
        with owned(tmp_path / "run", lambda _: None):
            said = run(tmp_path / "run", "--steps", "4", *words)
        assert said.status == 2
        assert str(tmp_path / "run") in said.sentence
    assert run(tmp_path / "run", "--steps", "4", "--resume").status == 0


def test_weights_of_two_runs_do_not_go_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "PATIENCE_S", 0.0)
    weights = tmp_path / "weights"
    words = (*WORDS[:-2], "--steps", "1", "--export-weights", str(weights))
    with owned(weights, lambda _: None):
        said = simgpt(*words)
    assert said.status == 2
    assert str(weights) in said.sentence
    assert simgpt(*words).status == 0
    assert sorted(each.name for each in weights.iterdir()) == ["config.json", "model.safetensors"]
    assert run(weights, "--steps", "1", "--export-weights", str(weights)).status == 2


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_text_alone_unless_it_is_told_to(tmp_path: Path) -> None:
    texts = [tmp_path / name for name in ("a.txt", "b.txt", "other.txt")]
    for path, content in zip(texts, ("text " * 99, "text " * 99, "others" * 99), strict=True):
        path.write_text(content)
    folder = tmp_path / "run"
    assert run(folder, "--steps", "2", "--data", str(texts[0])).status == 0
    again = run(folder, "--steps", "4", "--resume", "--data", str(texts[1]))
    assert again.status == 0, again.err
    assert not any("--data" in line for line in again.err.splitlines())
    refused = run(folder, "--steps", "6", "--resume", "--data", str(texts[2]), "--lr", "0.01")
    assert refused.status == 2
    for word in ("--data", str(texts[1]), str(texts[2]), "--lr", "0.0003", "0.01"):
        assert word in refused.sentence
    anyway = run(folder, "--steps", "6", "--resume-anyway", "--data", str(texts[2]))
    assert anyway.status == 0, anyway.err
    assert f"--data {texts[2]}" in anyway.err
    assert steps_in(folder)[0] == 6
