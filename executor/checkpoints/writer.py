"""Writing checkpoints beside training: copied to the host at a step's end, written in a thread.

No rank waits for another while it trains. Each writes its file and then a note that it did into a
draft folder that all ranks see; rank 0, in its thread, waits for all notes, puts them together as
the manifest and gives the draft its name. Whatever fails before, the draft goes and what was there
stays.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from executor.checkpoints.errors import DamagedCheckpointError
from executor.checkpoints.folder import SAVING, commit, name_of, prune
from executor.checkpoints.kept_tensors import Kept
from executor.checkpoints.manifest import FORMAT, rank_file
from executor.checkpoints.tensor_file import write_tensors
from executor.errors import LaunchError
from topologies.errors import OutputError
from topologies.files.writing import write_whole
from topologies.records import record

POLL_S = 0.02
NOTE = ".json"  # behind the name of a rank's file


@record(kw_only=True)
class Draft:
    """What all checkpoints of a run have in common on one rank.

    `about` goes into the manifest: model, plan and seed. `token` tells the drafts of this run from
    those of one that was killed.
    """

    folder: Path
    keep: int
    rank: int
    ranks: int
    token: str
    timeout_s: float
    about: dict[str, Any]
    kept: tuple[Kept, ...]

    def path(self, step: int) -> Path:
        """Where a checkpoint is while it is not whole."""
        return self.folder / f"{SAVING}{self.token}-{step:08}"


class Writer:
    """Writes one checkpoint at a time in a thread of its own. On rank 0 `saved` and `failed` say
    what became of those that are over."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._thread: Thread | None = None
        self._step = 0
        self.saved: SimpleQueue[int] = SimpleQueue()
        self.failed: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def write(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        """Begin to write what nobody changes any more; first the one before must be through."""
        self.wait()
        self._step = step
        self._thread = Thread(target=self._run, args=(step, tensors), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join(2 * self._draft.timeout_s)
            if self._thread.is_alive():
                raise LaunchError(
                    f"rank {self._draft.rank} has not written the checkpoint of step {self._step} "
                    f"within {2 * self._draft.timeout_s:.0f} s"
                )
            self._thread = None

    def _run(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        path, problem = self._draft.path(step), ""
        try:
            if not self._draft.rank:
                _remove_failed(self._draft, step)
            _write_part(self._draft, path, tensors)
            if not self._draft.rank:
                commit(path, _manifest(self._draft, path, step))
                self.saved.put(step)
        except (OSError, OutputError, LaunchError) as error:
            problem = _why(error)
        if not problem:
            return
        _withdraw(self._draft, path, problem)
        if not self._draft.rank:
            self.failed.put((step, problem))


def tidy(draft: Draft) -> None:
    """Keep the newest checkpoints; rank 0 does it, with nothing being written."""
    with suppress(OSError):
        prune(draft.folder, draft.keep)


def _remove_failed(draft: Draft, step: int) -> None:
    """Remove what is left of earlier saves: rank 0 gave them up, and a rank that was late with its
    part made the folder anew."""
    for path in draft.folder.glob(f"{SAVING}{draft.token}-*"):
        if path < draft.path(step):
            shutil.rmtree(path, ignore_errors=True)


def _write_part(draft: Draft, path: Path, tensors: dict[str, torch.Tensor]) -> None:
    path.mkdir(exist_ok=True)
    file = path / rank_file(draft.rank)
    written = write_tensors(file, tensors)
    layouts = {each.name: asdict(each.layout) for each in draft.kept}
    note = {"file": asdict(written), "layouts": layouts}
    write_whole(file.with_name(file.name + NOTE), json.dumps(note))


def _withdraw(draft: Draft, path: Path, problem: str) -> None:
    """Take back what was written. Rank 0 is told why, or finds the draft gone: on a full disk not
    even the reason may have room."""
    file = path / rank_file(draft.rank)
    try:
        if not draft.rank:
            shutil.rmtree(path)
            return
        file.unlink(missing_ok=True)
        write_whole(file.with_name(file.name + NOTE), json.dumps({"failed": problem}))
    except (OSError, OutputError):
        shutil.rmtree(path, ignore_errors=True)


def _manifest(draft: Draft, path: Path, step: int) -> dict[str, Any]:
    notes = _notes(draft, path)
    tensors: dict[str, Any] = {}
    for rank, note in notes.items():
        for name, layout in note["layouts"].items():
            entry = tensors.setdefault(name, {"layout": layout, "ranks": []})
            entry["ranks"].append(rank)
    for rank in notes:
        (path / f"{rank_file(rank)}{NOTE}").unlink()
    files = {rank_file(rank): note["file"] for rank, note in notes.items()}
    return {"format": FORMAT, "step": step, **draft.about, "files": files, "tensors": tensors}


def _notes(draft: Draft, path: Path) -> dict[int, dict[str, Any]]:
    """What every rank wrote down about its file, once all have."""
    until_s = time.monotonic() + draft.timeout_s
    wanted = {f"{rank_file(rank)}{NOTE}" for rank in range(draft.ranks)}
    while missing := wanted.difference(os.listdir(path)):
        if time.monotonic() > until_s:
            first = min(missing).removesuffix(NOTE)
            raise LaunchError(f"{first} was not written within {draft.timeout_s:.0f} s")
        time.sleep(POLL_S)
    notes: dict[int, dict[str, Any]] = {}
    for rank in range(draft.ranks):
        note = json.loads((path / f"{rank_file(rank)}{NOTE}").read_text(encoding="utf-8"))
        if "failed" in note:
            raise DamagedCheckpointError(f"rank {rank}: {note['failed']}")
        notes[rank] = note
    return notes


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "another rank could not write its part"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def said(step: int, problem: str, newest: int | None) -> str:
    """The sentence for a checkpoint that was not written."""
    left = "there is none yet" if newest is None else f"the newest is {name_of(newest)}"
    return f"the checkpoint of step {step} was not written: {problem}; {left}; training goes on"
