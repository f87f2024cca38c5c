"""Which run a checkpoint is of, and whether another run may go on from it; free of torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.checkpoints.folder import manifest_of, name_of, prepare, steps_in
from executor.launching.task_specs import Job
from topologies.files.printable import path_shown

# What must be the same for the losses to go on as they would have; the rest of the plan need not.
SAME = {"model": "model", "batch": "--batch", "seed": "--seed", "optimizer": "optimizer"}


def about(job: Job) -> dict[str, Any]:
    """What a manifest says of its run, as JSON has it."""
    words = {
        "model": asdict(job.gpt),
        "plan": job.plan.as_dict(),
        "batch": job.plan.batch,
        "optimizer": job.plan.optimizer,
        "seed": job.seed,
        "text": job.text,
        "tokenizer": job.tokenizer,
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
    prepare(folder)
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
        check_resumed(manifest, about(job), job.steps, path)
        return


def check_resumed(manifest: dict[str, Any], wanted: dict[str, Any], steps: int, path: Path) -> None:
    """Refuse a checkpoint that is of another run, or leaves no step to train."""
    for key, word in SAME.items():
        if manifest[key] != wanted[key]:
            was, is_now = (_short(each[key]) for each in (manifest, wanted))
            raise CheckpointError(
                f"{path_shown(path)} was written with {word} {was}, and this run has {is_now}"
            )
    if manifest["step"] >= steps:
        raise CheckpointError(
            f"{path_shown(path)} has step {manifest['step']} in it already; --steps {steps} leaves "
            "nothing to train"
        )


def _short(value: Any) -> str:
    return str(value["name"]) if isinstance(value, dict) else str(value)
