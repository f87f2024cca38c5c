"""Which run a checkpoint is of, and whether another run may go on from it; free of torch.

The losses go on as they would have if all that this compares is the same. The plan is not among
it, nor how often the run is saved, logged or evaluated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.checkpoints.folder import manifest_of, name_of, steps_in
from executor.checkpoints.manifest import Manifest
from executor.launching.task_specs import AdamW, Job
from executor.training.learning_rate import CONSTANT
from topologies.files.printable import path_shown, shown

SAME = {"batch": "--batch", "seed": "--seed", "optimizer": "optimizer"}
ADAMW = {
    "lr": "--lr",
    "beta1": "--beta1",
    "beta2": "--beta2",
    "eps": "--eps",
    "weight_decay": "--weight-decay",
    "clip": "--clip",
}
SCHEDULE = {
    "kind": "--lr-schedule",
    "warmup_steps": "--warmup-steps",
    "decay_steps": "--decay-steps",
    "least": "--min-lr",
}
FILES = {"text": "--data", "tokenizer": "--tokenizer"}
DEFAULT = {"text": "Python's manual", "tokenizer": "none"}
DIGITS = 12  # of a digest, enough for people to tell two apart
MOST_NAMED = 4
Difference = tuple[str, str, str]  # what differs, the checkpoint's value, this run's


def about(job: Job) -> dict[str, Any]:
    """What a manifest says of its run, as JSON has it."""
    words = {
        "model": job.gpt.flat(),
        "plan": job.plan.as_dict(),
        "batch": job.plan.batch,
        "optimizer": job.plan.training.optimizer,
        "seed": job.seed,
        "text": job.text,
        "tokenizer": job.tokenizer,
        "text_sha256": job.text_sha256,
        "tokenizer_sha256": job.tokenizer_sha256,
        "steps": job.steps,
        "adamw": asdict(job.adamw),
        "schedule": asdict(job.schedule),
    }
    found: dict[str, Any] = json.loads(json.dumps(words))
    return found


def check_before(job: Job) -> None:
    """Refuse, before any rank starts, a folder that does not suit the run.

    One that has checkpoints is another run's unless the run resumes from them: they would be
    mistaken for its own. Whether a checkpoint is whole, only the ranks find out.
    """
    saving = job.saving
    if saving is None or saving.restarted:
        return
    folder = Path(saving.folder)
    steps = steps_in(folder)
    if steps and not saving.resume:
        raise CheckpointError(
            f"{path_shown(folder)} has checkpoints up to step {steps[0]}; --resume goes on from "
            "there, or name another folder"
        )
    for step in steps:
        path = folder / name_of(step)
        try:
            manifest = manifest_of(path)
        except DamagedCheckpointError:
            continue
        check_resumed(manifest, job, path)
        return


def check_resumed(manifest: Manifest, job: Job, path: Path) -> str:
    """Refuse a checkpoint that is of another run, or leaves no step to train; what differs, of one
    that the run goes on from anyway."""
    found = [*_differences(manifest, job)]
    was, here = (_listed([(name, pair[at]) for name, *pair in found]) for at in (0, 1))
    said = f"was written with {was}, and this run has {here}"
    assert job.saving is not None, "only a run that is saved resumes"
    if found and not job.saving.anyway:
        raise CheckpointError(f"{path_shown(path)} {said}; --resume-anyway goes on all the same")
    if found and (wrong := _misfit(manifest, job)):
        raise CheckpointError(f"{path_shown(path)} {wrong}")
    if manifest.step >= job.steps:
        raise CheckpointError(
            f"{path_shown(path)} has step {manifest.step} in it already; --steps {job.steps} "
            "leaves nothing to train"
        )
    return said if found else ""


def _differences(manifest: Manifest, job: Job) -> Iterator[Difference]:
    now = about(job)
    for key in dict.fromkeys(["name", *now["model"], *manifest.model]):
        yield from _other("model" if key == "name" else key, manifest.model, now["model"], key)
    own = {key: getattr(manifest, key) for key in SAME}
    for key, word in SAME.items():
        yield from _other(word, own, now, key)
    for key, word in FILES.items():
        yield from _other_file(key, word, manifest, now)
    for key, word in ADAMW.items():
        yield from _other(word, _as_given(manifest.adamw), _as_given(job.adamw), key)
    for key, word in SCHEDULE.items():
        yield from _other(word, asdict(manifest.schedule), asdict(job.schedule), key)
    if _other_rates(manifest, job):
        yield "--steps", str(manifest.steps), str(job.steps)


def _other(word: str, was: dict[str, Any], now: dict[str, Any], key: str) -> Iterator[Difference]:
    if key not in was or key not in now or was[key] != now[key]:
        yield word, shown(was.get(key, "none")), shown(now.get(key, "none"))


def _as_given(adamw: AdamW) -> dict[str, Any]:
    """Its numbers as the command line has them: a clip of 0 for never."""
    return asdict(replace(adamw, clip=0.0) if adamw.clip == math.inf else adamw)


def _other_file(
    key: str, word: str, manifest: Manifest, now: dict[str, Any]
) -> Iterator[Difference]:
    """Yield a file that differs. Content under another name is no difference; where a manifest does
    not know the content, only whether there is a file counts."""
    before, after = getattr(manifest, f"{key}_sha256"), now[f"{key}_sha256"]
    names = [name or DEFAULT[key] for name in (getattr(manifest, key), now[key])]
    known = before is not None and after is not None
    if before == after if known else (names[0] == DEFAULT[key]) == (names[1] == DEFAULT[key]):
        return
    marks = [f" ({digest[:DIGITS]}…)" if digest else "" for digest in (before, after)]
    yield word, path_shown(names[0]) + marks[0], path_shown(names[1]) + marks[1]


def _other_rates(manifest: Manifest, job: Job) -> bool:
    """Whether a step that was taken would have had another learning rate in a run of so many steps:
    a rate that falls towards the last step depends on which that is."""
    if manifest.steps is None or job.schedule.kind == CONSTANT:
        return False
    before, after = (job.schedule.decays_from(steps) for steps in (manifest.steps, job.steps))
    return before != after and manifest.step > min(before[0], after[0])


def _listed(pairs: list[tuple[str, str]]) -> str:
    """Names with their values, of many the first."""
    words = [f"{name} {value}" for name, value in pairs[:MOST_NAMED]]
    more = len(pairs) - len(words)
    words += [f"{more} more"] if more else []
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def same_tensors(manifest: Manifest, job: Job) -> bool:
    """Whether a checkpoint is of the model and the optimizer, and so of the tensors, of a run."""
    return (
        manifest.optimizer == job.plan.training.optimizer and manifest.model == about(job)["model"]
    )


def _misfit(manifest: Manifest, job: Job) -> str:
    """What keeps the tensors of a checkpoint from being those of another model or optimizer."""
    if same_tensors(manifest, job):
        return ""
    from executor.checkpoints.kept_tensors import misfit
    from workload.lowering import lower

    stages = range(job.plan.grid.pp)
    programs = (lower(job.gpt, job.plan, stage, forms=dict(job.forms)) for stage in stages)
    return next(filter(None, (misfit(program, manifest.layouts) for program in programs)), "")
