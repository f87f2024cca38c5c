"""The checkpoints of one run on one rank: where it goes on, when it saves, how it ends."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from executor.checkpoints.belonging import about, check_resumed, same_tensors
from executor.checkpoints.errors import CheckpointError
from executor.checkpoints.folder import (
    DIVERGED,
    clear_drafts,
    made,
    name_of,
    set_aside,
    steps_in,
)
from executor.checkpoints.kept_tensors import misfit, restore, snapshot, written_by
from executor.checkpoints.manifest import Manifest
from executor.checkpoints.reading import Found, newest_whole, saved_tensors
from executor.checkpoints.saving import Saving
from executor.checkpoints.schedule import SaveSchedule
from executor.checkpoints.writer import Draft, Writer, said, tidy
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import Job, Report
from executor.train import Trainer, TrainingStep
from topologies.files.printable import path_shown

Note = Callable[[str], None]


class NoSaver:
    """A run that nobody saves."""

    done = 0

    def after(self, step: TrainingStep) -> None:
        """Save nothing."""

    def finish(self, step: TrainingStep) -> dict[str, Any]:
        """Have nothing to say."""
        return {}


class RunSaver:
    """Saves a trainer's state and brings it back. `done` is the last step of the checkpoint that
    the run went on from, 0 if it began afresh."""

    def __init__(
        self, saving: Saving, job: Job, trainer: Trainer, info: RankInfo, note: Note
    ) -> None:
        self._saving, self._trainer, self._info, self._note = saving, trainer, info, note
        self._folder = Path(saving.folder)
        self._job = job
        if not info.rank:
            made(self._folder)
            if saving.owned:
                clear_drafts(self._folder)
        kept = tuple(written_by(trainer.program, info.rank))
        self._draft = Draft(
            folder=self._folder,
            keep=saving.keep,
            rank=info.rank,
            ranks=info.ranks,
            token=_token(info.rank),
            timeout_s=job.timeout_s,
            about=about(job),
            kept=kept,
        )
        self._writer = Writer(self._draft)
        self._saved: list[int] = []
        self._failed = ""
        self.done = self._resume() if saving.resume else 0
        self._newest = self.done
        self._schedule = SaveSchedule(saving, self.done, trainer.place.device)

    def after(self, step: TrainingStep) -> None:
        """Begin to save the state after a step, if it is time to."""
        self._look()
        if math.isfinite(step.loss) and self._schedule.is_due(step.number):
            self._save(step.number)

    def finish(self, step: TrainingStep) -> dict[str, Any]:
        """Save the state after the last step, and wait for it; what became of the checkpoints.

        Where its loss is not finite, the state before it gave that loss, and is set aside.
        """
        last, is_finite = step.number, math.isfinite(step.loss)
        if is_finite and self._newest != last:
            self._save(last)
        self._writer.wait()
        self._look()
        found = {"resumed_at_step": self.done or None, "saved_steps": self._saved}
        if self._info.rank:
            return found
        if not is_finite:
            with suppress(OSError):
                set_aside(self._folder / name_of(last - 1), DIVERGED)
        newest = next(iter(steps_in(self._folder)), None)
        path = None if newest is None else str(self._folder / name_of(newest))
        return {**found, "newest_checkpoint": path, "unsaved": self._failed or None}

    def _save(self, step: int) -> None:
        self._writer.wait()
        self._look()
        self._newest = step
        self._writer.write(step, snapshot(list(self._draft.kept), self._trainer.table))

    def _look(self) -> None:
        """Say what became of checkpoints that were being written."""
        while not self._writer.saved.empty():
            self._saved.append(self._writer.saved.get())
            self._failed = ""
            tidy(self._draft)
        while not self._writer.failed.empty():
            step, problem = self._writer.failed.get()
            newest = next(iter(steps_in(self._folder)), None)
            self._failed = said(step, problem, newest)
            self._note(self._failed)

    def _resume(self) -> int:
        below = self._job.steps if self._saving.restarted else None
        rank, ranks = self._info.rank, self._info.ranks
        found = newest_whole(
            self._folder, below=below, rank=rank, ranks=ranks, lacks=self._own_lacks
        )
        if found is None:
            self._note(f"no checkpoint in {path_shown(self._folder)} yet: begins at step 1")
            return 0
        changed = check_resumed(found.manifest, self._job, found.path)
        self._load(found)
        for problem in found.damaged:
            self._note(f"damaged checkpoint set aside: {problem}")
        step = found.manifest.step
        but = f", which {changed}" if changed else ""
        self._note(f"resumed at step {step} ({path_shown(found.path)}){but}")
        return step

    def _own_lacks(self, manifest: Manifest) -> str:
        """What is missing in a checkpoint of this very run, which is damaged then."""
        is_own = same_tensors(manifest, self._job)
        return misfit(self._trainer.program, manifest.layouts) if is_own else ""

    def _load(self, found: Found) -> None:
        trainer = self._trainer
        if wrong := misfit(trainer.program, found.manifest.layouts):
            raise CheckpointError(f"{path_shown(found.path)} {wrong}")
        restore(trainer.table, trainer.program, self._info.rank, saved_tensors(found))
        trainer.cast_weights()


def saver_of(job: Job, trainer: Trainer, info: RankInfo, report: Report) -> RunSaver | NoSaver:
    """What saves a job on a rank, which tells `report` of it."""
    if job.saving is None:
        return NoSaver()
    return RunSaver(job.saving, job, trainer, info, lambda note: report({"note": note}))


def _token(rank: int) -> str:
    """A word that all ranks of this run know, and no other run."""
    word: list[Any] = [secrets.token_hex(4) if not rank else None]
    dist.broadcast_object_list(word)
    return str(word[0])
