"""A run that goes on from its checkpoint is the run that was not stopped, to the last bit.

The continuous run and the resumed one are compared step by step, and by the digests of the files
that both write after the last step: every parameter, master copy and state of every rank.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.checkpoints.folder import DAMAGED, DIVERGED, SAVING, manifest_of, name_of, steps_in
from executor.checkpoints.manifest import rank_file
from executor.checkpoints.saving import Saving
from executor.launching.task_specs import AdamW, Job
from executor.training.held_out import HeldOut
from tests.examples import slow
from tests.executor.resumed import FROM, STEPS, Ran, job_of, ran, resumes, spoil, whole_and_resumed
from tests.executor.test_manifest import edited
from workload.gpt import GPT, find_model
from workload.plan_text import parse_plan

TINY = find_model("tiny-30k")
FOUR = replace(TINY, layers=4)
MIXTRAL = find_model("tiny-mixtral-130k").changed(
    experts=4, expert_ffn=32, ffn=32, heads=4, kv_heads=2
)
# Biases by which experts are chosen follow the loads of each step, and are no optimizer's.
BALANCED = MIXTRAL.changed(router="sigmoid", router_bias=True, router_bias_rate=0.01)


def same_again(job: Job) -> None:
    """The run goes on in step 3 of 3, which gives all that it gave before."""
    whole, again = whole_and_resumed(job)
    assert [each["step"] for each in whole.steps] == [1, 2, 3]
    assert [each["step"] for each in again.steps] == [3]
    assert (whole.result["resumed_at_step"], again.result["resumed_at_step"]) == (None, FROM)
    assert again.steps == whole.steps[FROM:]
    assert len(whole.state) == job.plan.grid.ranks
    assert again.state == whole.state


def test_one_rank_goes_on_with_its_state_its_data_its_rates_and_its_evaluation(
    tmp_path: Path,
) -> None:
    """Rates rise to 8e-3 in step 1 and fall to 2e-3 within three steps. Dropout draws anew in each
    step, by its number."""
    held_out = HeldOut(text="README.md", every=3, batches=1)
    gpt = replace(TINY, dropout=0.1)
    job = job_of(gpt, "dp=1", tmp_path, steps=4, held_out=held_out)
    whole, again = whole_and_resumed(job)
    assert [each["step"] for each in again.steps] == [3, 4]
    assert [each["lr"] for each in again.steps] == pytest.approx([4e-3, 2e-3])
    assert again.result["losses"] == whole.result["losses"][2:]
    assert again.result["losses"][0] != again.result["losses"][1]
    assert ["eval_loss" in each for each in whole.steps] == [False, False, True, True]
    assert again.steps == whole.steps[2:]
    assert again.state == whole.state
    assert again.result["saved_steps"] == [4]


@pytest.mark.parametrize(
    ("gpt", "plan"),
    [
        (TINY, "recipe=fp8-tensorwise"),
        *slow((TINY, "recipe=nvfp4")),
        (TINY, "recipe=fp8-tensorwise,fp8_params=true"),
        (TINY, "recipe=mxfp8,offload=optimizer"),
        (TINY, "offload=optimizer"),
        (TINY, "offload=update,offload_share=0.5"),
        (TINY, "optimizer=muon,offload=optimizer"),
        (TINY, "optimizer=sgd-momentum,precision=fp32"),
        (TINY, "optimizer=mezo"),
        (TINY, "moments=bf16"),
        (BALANCED, "dp=1"),
    ],
)
def test_one_rank_goes_on_to_the_bit_under(gpt: GPT, plan: str, tmp_path: Path) -> None:
    same_again(job_of(gpt, plan, tmp_path))


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("gpt", "plan"),
    [
        (TINY, "cp=2,recipe=mxfp8"),
        (TINY, "dp=2,zero=3,offload=parameters"),
        (BALANCED, "dp=2,ep=2,zero=1"),
        *slow(
            (TINY, "dp=2,zero=3,recipe=fp8-tensorwise"),
            (TINY, "dp=2,zero=1,optimizer=muon"),
            (TINY, "pp=2,mbs=2,offload=optimizer"),
            (MIXTRAL, "dp=2,ep=2,recipe=mxfp8,offload=optimizer"),
            (MIXTRAL, "cp=2,ep=2,zero=1"),
            (MIXTRAL, "tp=2,ep=2,etp=1,sp=true"),
            (FOUR, "pp=2,schedule=dualpipe,mbs=1"),
            (FOUR, "pp=2,vpp=2,mbs=1"),
            (TINY, "dp=4,shard=2,zero=3"),
        ),
    ],
)
def test_several_ranks_go_on_to_the_bit_under(gpt: GPT, plan: str, tmp_path: Path) -> None:
    held_out = HeldOut(text="README.md", every=STEPS, batches=1)
    same_again(job_of(gpt, plan, tmp_path, held_out=held_out))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """The folder of a run on one rank, with checkpoints of steps 2 and 3 of 3, and what it gave."""
    folder = tmp_path_factory.mktemp("one")
    return folder, ran(job_of(TINY, "dp=1", folder))[0]


@pytest.fixture
def folder(saved: tuple[Path, Ran], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "run"))


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"seed": 1}, "--seed"), ({"steps": 3}, "--steps 3"), ({"steps": 2}, "--steps 2")],
)
def test_ranks_refuse_the_checkpoint_of_another_run_or_of_its_last_step(
    changed: dict[str, Any], named: str, folder: Path
) -> None:
    job = replace(job_of(TINY, "dp=1", folder, steps=4), **changed)
    with pytest.raises(CheckpointError, match=named):
        ran(resumes(job))
    assert steps_in(folder) == [3, 2]


@pytest.mark.parametrize("is_owned", [True, False])
def test_what_a_killed_attempt_left_half_written_goes_if_the_run_owns_the_folder(
    is_owned: bool, folder: Path
) -> None:
    """Else it may be what another run is writing."""
    draft = folder / f"{SAVING}0000-00000004"
    draft.mkdir()
    job = resumes(job_of(TINY, "dp=1", folder))
    assert job.saving is not None
    with pytest.raises(CheckpointError):  # it has its last step already
        ran(replace(job, saving=replace(job.saving, owned=is_owned)))
    assert draft.exists() != is_owned


def test_what_a_launcher_starts_again_does_its_last_step_again(
    saved: tuple[Path, Ran], folder: Path
) -> None:
    """Its checkpoint of the last step leaves none to train; a launcher knows nothing of that."""
    job = resumes(job_of(TINY, "dp=1", folder))
    assert job.saving is not None
    again = ran(replace(job, saving=replace(job.saving, restarted=True)))[0]
    assert again.result["resumed_at_step"] == 2
    assert again.steps == saved[1].steps[2:]
    assert again.state == saved[1].state
    assert steps_in(folder) == [3, 2]


def test_a_checkpoint_of_this_very_run_that_lacks_a_state_is_damaged_not_another_runs(
    folder: Path,
) -> None:
    """Of each part of each tensor that it names it has a file, but it names one too few."""
    path = folder / name_of(2)
    state = next(reversed(manifest_of(path).tensors))
    edited(path, lambda manifest: manifest["tensors"].pop(state))
    job = resumes(job_of(TINY, "dp=1", folder))
    assert job.saving is not None
    with pytest.raises(DamagedCheckpointError, match=state):
        ran(replace(job, saving=replace(job.saving, restarted=True)))
    assert (folder / f"{name_of(2)}{DAMAGED}").is_dir()


def test_where_there_is_no_checkpoint_yet_a_run_begins_afresh(
    saved: tuple[Path, Ran], tmp_path: Path
) -> None:
    first = ran(resumes(job_of(TINY, "dp=1", tmp_path / "new" / "run")))[0]
    assert first.result["resumed_at_step"] is None
    assert first.steps == saved[1].steps
    assert first.state == saved[1].state
    assert len(first.notes) == 1


def test_a_state_that_gave_a_lost_loss_is_neither_saved_nor_gone_on_from(tmp_path: Path) -> None:
    """After step 1 every weight is infinite: the loss of step 2 says so. What was saved after step
    1 is put aside, and what step 2 makes of it is not saved."""
    every = Saving(folder=str(tmp_path), every_steps=1)
    lost = job_of(TINY, "precision=fp32", tmp_path, adamw=AdamW(lr=1e30), saving=every)
    first = ran(lost)[0]
    assert first.result["diverged_at_step"] == 2
    assert first.result["newest_checkpoint"] is None
    assert {each.name for each in tmp_path.iterdir()} == {f"{name_of(1)}{DIVERGED}"}


@pytest.mark.parametrize(("lr", "is_good"), [(8e-3, True), (1e30, False)])
def test_a_run_that_lost_its_loss_exports_no_weights_and_evaluates_none(
    lr: float, is_good: bool, tmp_path: Path
) -> None:
    into, held_out = tmp_path / "weights", HeldOut(text="README.md", every=1, batches=1)
    into.mkdir()
    about = {"steps": 2, "adamw": AdamW(lr=lr), "held_out": held_out}
    job = job_of(TINY, "precision=fp32", tmp_path / "run", export_weights=str(into), **about)
    found = ran(job)[0]
    assert (found.result["diverged_at_step"] is None) == is_good
    assert ["eval_loss" in each for each in found.reports] == [True, is_good]
    assert any(into.iterdir()) == is_good


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Ran]:
    """A run on two ranks whose states are sharded, saved after each of three steps. In fp64, in
    which what is summed in another order is the same to 1e-9."""
    every = Saving(folder=str(tmp_path_factory.mktemp("two")), every_steps=1)
    job = job_of(TINY, "dp=2,zero=1,precision=fp64", Path(every.folder), saving=every)
    return job, ran(job)[0]


@pytest.mark.distributed
@pytest.mark.parametrize("plan", ["dp=1", "dp=2,zero=1", "tp=2"])
def test_under_any_plan_a_run_goes_on_and_finds_the_damage_of_every_writer(
    plan: str, saved_by_two: tuple[Job, Ran], tmp_path: Path
) -> None:
    """Of the checkpoint of step 2 the second rank's file is damaged, so it goes on from step 1."""
    job, whole = saved_by_two
    assert job.saving is not None
    folder = Path(shutil.copytree(job.saving.folder, tmp_path / "run"))
    spoil(folder / name_of(2) / rank_file(1))
    saving = replace(job.saving, folder=str(folder), resume=True, restarted=True)
    other = parse_plan(f"{plan},precision=fp64", batch=4)
    again = ran(replace(job, plan=other, saving=saving))[0]
    assert again.result["resumed_at_step"] == 1
    assert (folder / f"{name_of(2)}{DAMAGED}").is_dir()
    assert again.result["losses"] == pytest.approx(whole.result["losses"][1:], rel=1e-9)
    assert len(again.state) == other.grid.ranks
