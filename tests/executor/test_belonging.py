"""What differs between the run of a checkpoint and the run that would go on from it."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints.belonging import about, check_resumed
from executor.checkpoints.errors import CheckpointError
from executor.checkpoints.manifest import FORMAT, Manifest, manifest_text, rank_file, read_manifest
from executor.checkpoints.saving import Saving
from executor.launching.task_specs import AdamW, Job
from executor.training.learning_rate import Schedule
from tests.messages import assert_names, names
from workload.gpt import find_model
from workload.layout import Layout
from workload.plan_text import parse_plan

STEP = 6
JOB = Job(
    gpt=find_model("tiny-30k"),
    plan=parse_plan("dp=1,batch=4"),
    steps=12,
    saving=Saving(folder="c", resume=True),
    text_sha256="a" * 64,
)
LAYOUT = Layout(shape=(2,), padded=(2,), split=((),))


def manifest(folder: Path, job: Job, **changed: Any) -> Manifest:
    """What a checkpoint of a job says after `STEP` steps, as it is read again."""
    files = {rank_file(0): {"nbytes": 8, "sha256": "0" * 64}}
    raw = {"format": FORMAT, "step": STEP, **about(job), "files": files, "tensors": {}} | changed
    raw = {key: value for key, value in raw.items() if value != "absent"}
    path = folder / "manifest.json"
    path.write_text(manifest_text(raw), encoding="utf-8")
    return read_manifest(path)


def adamw(**changed: float) -> dict[str, Any]:
    return {"adamw": replace(JOB.adamw, **changed)}


def schedule(**changed: Any) -> dict[str, Any]:
    return {"schedule": replace(JOB.schedule, **changed)}


def model(**changed: Any) -> dict[str, Any]:
    return {"gpt": JOB.gpt.changed(**changed)}


@pytest.mark.parametrize(
    ("changed", "word", "was", "here"),
    [
        (adamw(lr=0.01), "--lr", "0.0003", "0.01"),
        (adamw(beta1=0.8), "--beta1", "0.9", "0.8"),
        (adamw(beta2=0.8), "--beta2", "0.95", "0.8"),
        (adamw(eps=1e-6), "--eps", "1e-08", "1e-06"),
        (adamw(weight_decay=0.5), "--weight-decay", "0.1", "0.5"),
        (adamw(clip=math.inf), "--clip", "1.0", "0.0"),
        (schedule(kind="cosine"), "--lr-schedule", "constant", "cosine"),
        (schedule(warmup_steps=3), "--warmup-steps", "0", "3"),
        ({"seed": 7}, "--seed", "0", "7"),
        ({"plan": parse_plan("dp=1,batch=8")}, "--batch", "4", "8"),
        ({"plan": parse_plan("dp=1,batch=4,optimizer=muon")}, "optimizer", "adamw", "muon"),
        (model(dropout=0.1), "dropout", "0.0", "0.1"),
        (model(goldfish_k=4), "goldfish_k", "0", "4"),
        ({"text": "b.txt", "text_sha256": "b" * 64}, "--data", "Python's manual", "b.txt"),
        ({"text_sha256": "b" * 64}, "--data", "aaaaaaaaaaaa", "bbbbbbbbbbbb"),
        ({"tokenizer": "t.json", "tokenizer_sha256": "c" * 64}, "--tokenizer", "none", "t.json"),
    ],
)
def test_what_differs_is_named_with_both_values(
    changed: dict[str, Any], word: str, was: str, here: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, check=names(word, was, here)):
        check_resumed(manifest(tmp_path, JOB), replace(JOB, **changed), tmp_path / "step")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"text": "elsewhere.txt"},
        {"steps": 400},
        {"plan": parse_plan("tp=2,zero=1,precision=fp32,batch=4")},
        {"saving": Saving(folder="d", resume=True, every_steps=3, keep=9)},
        {"threads": 2},
        {"timeout_s": 5.0},
    ],
)
def test_what_may_change_goes_on_silently(changed: dict[str, Any], tmp_path: Path) -> None:
    assert check_resumed(manifest(tmp_path, JOB), replace(JOB, **changed), tmp_path) == ""


@pytest.mark.parametrize(
    ("kind", "changed", "steps", "refused"),
    [
        ("cosine", {}, 12, False),
        ("cosine", {}, 20, True),
        ("cosine", {"decay_steps": 10}, 20, False),
        ("cosine", {"warmup_steps": STEP}, 20, False),  # every step so far was of the warm-up
        ("linear", {"warmup_steps": STEP - 1}, 20, True),
        ("wsd", {"decay_steps": 2}, 20, False),  # the decay had not begun
        ("wsd", {"decay_steps": 8}, 20, True),
    ],
)
def test_another_last_step_matters_if_a_step_would_have_had_another_rate(
    kind: str, changed: dict[str, Any], steps: int, refused: bool, tmp_path: Path
) -> None:
    job = replace(JOB, schedule=Schedule(kind=kind, **changed))
    longer = replace(job, steps=steps)
    rates = [[each.lr(step) for step in range(1, STEP + 1)] for each in (job, longer)]
    assert (rates[0] != rates[1]) == refused
    if not refused:
        assert check_resumed(manifest(tmp_path, job), longer, tmp_path) == ""
        return
    with pytest.raises(CheckpointError, check=names("--steps 12", f"--steps {steps}")):
        check_resumed(manifest(tmp_path, job), longer, tmp_path)


def test_anyway_says_what_differs_and_goes_on(tmp_path: Path) -> None:
    anyway = replace(JOB, adamw=AdamW(lr=0.01), saving=Saving(folder="c", resume=True, anyway=True))
    said = check_resumed(manifest(tmp_path, JOB), anyway, tmp_path)
    assert_names(said, "--lr 0.0003", "--lr 0.01")


def test_not_even_anyway_are_tensors_of_another_shape_taken(tmp_path: Path) -> None:
    tensors = {"embed.w": {"layout": asdict(LAYOUT), "ranks": [0]}}
    anyway = Saving(folder="c", resume=True, anyway=True)
    other = replace(JOB, gpt=replace(JOB.gpt, hidden=64), saving=anyway)
    with pytest.raises(CheckpointError, match=r"embed\.w"):
        check_resumed(manifest(tmp_path, JOB, tensors=tensors), other, tmp_path)


def test_a_manifest_that_does_not_know_the_content_is_asked_only_whether_there_was_a_file(
    tmp_path: Path,
) -> None:
    before = replace(JOB, text="a.txt", text_sha256=None)
    old = manifest(tmp_path, before, text_sha256="absent", tokenizer_sha256="absent")
    assert check_resumed(old, replace(JOB, text="b.txt"), tmp_path) == ""
    with pytest.raises(CheckpointError, match="--data"):
        check_resumed(old, JOB, tmp_path)
