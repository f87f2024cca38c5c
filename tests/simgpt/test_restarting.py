"""What decides where a run begins: its options, its launcher, its folder, and lost ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from executor.checkpoints import ownership
from executor.checkpoints.belonging import check_before
from executor.checkpoints.errors import CheckpointError
from executor.checkpoints.folder import MANIFEST, SAVING, name_of
from executor.checkpoints.ownership import owned
from executor.checkpoints.saving import Saving
from executor.errors import LaunchError
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import Job
from simgpt.running.checkpointing import owning, saving_of
from simgpt.running.restarting import with_restarts
from tests.executor.test_belonging import manifest
from workload.gpt import find_model
from workload.plan_text import parse_plan

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
FIRST, SECOND = (RankInfo(rank, 2, rank, 2) for rank in range(2))
JOB = Job(
    gpt=find_model("tiny-30k"),
    plan=parse_plan("dp=1,batch=4"),
    steps=12,
    saving=Saving(folder="folder"),
)
NONE: dict[str, Any] = {"save": None, "save_every": None, "keep": None, "max_restarts": 0}
NONE |= {"resume": False, "resume_anyway": False}


def asked(info: RankInfo | None = None, **given: Any) -> Saving:
    saving = saving_of({**NONE, "save": Path("folder"), **given}, info)
    assert saving is not None
    return saving


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr("simgpt.options.note", said.append)
    return said


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, {}),
        ({"resume": True}, {"resume": True}),
        ({"resume_anyway": True}, {"resume": True, "anyway": True}),
        ({"keep": 7, "save_every": "5"}, {"keep": 7, "every_steps": 5}),
        ({"save_every": "15min"}, {"every_s": 900.0}),
        ({"max_restarts": 2}, {}),  # the first attempt is no restart
    ],
)
def test_a_run_begins_where_its_options_say(given: dict[str, Any], fields: dict[str, Any]) -> None:
    assert asked(**given) == Saving(**{"folder": "folder", "keep": 3, **fields})


@pytest.mark.parametrize(("count", "again"), [("1", True), ("12", True), ("0", False), ("", False)])
def test_what_torchrun_starts_again_goes_on_untold(
    count: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every rank of it; a process that is no rank of a launcher begins as it is told."""
    monkeypatch.setenv(RESTARTS, count)
    for rank in (FIRST, SECOND):
        saving = asked(rank)
        assert (saving.resume, saving.restarted, saving.anyway) == (again, again, False)
    assert asked() == Saving(folder="folder")


def test_a_restart_of_what_is_not_saved_is_told_once_that_it_begins_afresh(
    monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    assert saving_of(NONE, FIRST) is None
    assert notes == []
    monkeypatch.setenv(RESTARTS, "3")
    for rank in (FIRST, SECOND):
        assert saving_of(NONE, rank) is None
    assert len(notes) == 1
    assert "3" in notes[0]
    assert "--save" in notes[0]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("save_every", "2"),
        ("keep", 2),
        ("resume", True),
        ("resume_anyway", True),
        ("max_restarts", 1),
    ],
)
def test_an_option_of_checkpoints_needs_a_folder(option: str, value: object) -> None:
    with pytest.raises(click.UsageError, match=f"--{option.replace('_', '-')}.*--save"):
        saving_of({**NONE, option: value}, None)


def test_ranks_of_a_launcher_are_not_started_again_by_simgpt() -> None:
    with pytest.raises(click.UsageError, match="--max-restarts"):
        asked(FIRST, max_restarts=1)


def attempts(
    fails: int, done: list[Job], *, asks: bool = False
) -> Callable[[Job, Callable[[], None]], dict[str, Any]]:
    """Attempts of which so many lose a rank, noted with the job of each."""

    def attempt(job: Job, interrupted: Callable[[], None]) -> dict[str, Any]:
        done.append(job)
        if asks:
            interrupted()
        if len(done) <= fails:
            raise LaunchError("rank 1 was killed")
        return {"attempt": len(done)}

    return attempt


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_a_run_that_loses_a_rank_goes_on_from_its_newest_checkpoint(
    fails: int, notes: list[str]
) -> None:
    """Though it was started without --resume; a note counts each restart."""
    done: list[Job] = []
    assert with_restarts(attempts(fails, done), JOB, 2) == {"attempt": fails + 1}
    assert done[0] == JOB
    again = replace(JOB, saving=Saving(folder="folder", resume=True, restarted=True))
    assert done[1:] == [again] * fails
    assert len(notes) == fails
    for number, note in enumerate(notes, start=1):
        assert "rank 1 was killed" in note
        assert f"{number} of 2" in note


def test_no_more_restarts_than_are_allowed_and_none_after_ctrl_c(notes: list[str]) -> None:
    for most, asks, tried in ((0, False, 1), (2, False, 3), (2, True, 1)):
        done: list[Job] = []
        with pytest.raises(LaunchError):
            with_restarts(attempts(9, done, asks=asks), JOB, most)
        assert len(done) == tried


def test_what_is_wrong_with_a_checkpoint_is_no_lost_rank(notes: list[str]) -> None:
    def refuse(job: Job, interrupted: Callable[[], None]) -> dict[str, Any]:
        raise CheckpointError("of another run")

    with pytest.raises(CheckpointError):
        with_restarts(refuse, JOB, 2)
    assert notes == []


def saved(folder: Path, step: int, **changed: Any) -> None:
    """A folder with the manifest of a checkpoint of the job."""
    path = folder / name_of(step)
    path.mkdir(parents=True)
    manifest(path, replace(JOB, **changed), step=step)


def before(folder: Path, **how: Any) -> None:
    check_before(replace(JOB, saving=Saving(folder=str(folder), **how)))


def test_a_folder_with_checkpoints_is_for_a_run_that_resumes(tmp_path: Path) -> None:
    before(tmp_path / "none")
    check_before(replace(JOB, saving=None))
    saved(tmp_path, 4)
    saved(tmp_path, 6)
    with pytest.raises(CheckpointError, match=r"step 6.*--resume"):
        before(tmp_path)
    before(tmp_path, resume=True)
    before(tmp_path, resume=True, restarted=True)


@pytest.mark.parametrize(
    ("changed", "step", "named"), [({"seed": 1}, 6, "--seed 1"), ({}, 12, "--steps 12")]
)
def test_before_a_rank_starts_the_newest_manifest_must_be_the_runs_and_leave_a_step(
    changed: dict[str, Any], step: int, named: str, tmp_path: Path
) -> None:
    """The older one would do. What a launcher starts again is left to its ranks."""
    saved(tmp_path, 4)
    saved(tmp_path, step, **changed)
    with pytest.raises(CheckpointError, match=named):
        before(tmp_path, resume=True)
    before(tmp_path, resume=True, restarted=True)
    (tmp_path / name_of(step) / MANIFEST).write_text("{}")  # damaged, as the ranks will find
    before(tmp_path, resume=True)


def test_of_older_checkpoints_nothing_is_asked(tmp_path: Path) -> None:
    """One that went on from another run's, told to, has these before its own."""
    saved(tmp_path, 4, seed=1)
    saved(tmp_path, 6)
    before(tmp_path, resume=True)


def test_the_one_run_of_a_folder_owns_it_and_rank_0_of_a_launcher_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "PATIENCE_S", 0.0)
    saving = Saving(folder=str(tmp_path))
    job = replace(JOB, saving=saving)
    draft = tmp_path / f"{SAVING}x-00000001"
    for first in (None, FIRST):
        draft.mkdir()
        with owning(job, first) as (told, held):
            assert told.saving == replace(saving, owned=True)
            assert len(held) == 1
            assert not draft.exists()
            with owning(job, SECOND) as (other, none):
                assert (other, none) == (job, ())
            with pytest.raises(CheckpointError, match=str(tmp_path)), owned(tmp_path, print):
                pytest.fail("two runs own it")
            draft.mkdir()  # what it was writing as it ended
        assert not draft.exists()
    with owning(replace(job, saving=None), None) as (told, held):
        assert (told.saving, held) == (None, ())
