"""Going on from a checkpoint: the newest that is whole, found by all ranks together, and loaded.

Each rank checks the digests of its share of the files, so that a byte is read twice at most,
whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.checkpoints.errors import DamagedCheckpointError
from executor.checkpoints.folder import (
    DAMAGED,
    manifest_of,
    name_of,
    rank_file,
    set_aside,
    steps_in,
)
from executor.checkpoints.kept_tensors import Saved
from executor.checkpoints.tensor_file import TensorFile, Written, digest_of
from topologies.files.printable import path_shown
from workload.layout import Layout
from workload.plan_text import parse_plan


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint to go on from, whole; `damaged` says of newer ones why they are not."""

    path: Path
    manifest: dict[str, Any]
    damaged: tuple[str, ...]

    @property
    def step(self) -> int:
        """The last step that it has in it."""
        step: int = self.manifest["step"]
        return step


def newest_whole(folder: Path, *, below: int | None, rank: int, ranks: int) -> Found | None:
    """The newest whole checkpoint, of a step below a bound if there is one; None where there is
    none at all. All ranks call it, and find the same.

    Newer ones that are damaged are set aside, so that they neither count nor are tried again.
    """
    names: list[Any] = [steps_in(folder) if not rank else None]
    dist.broadcast_object_list(names)
    steps = [step for step in names[0] if below is None or step < below]
    problems: list[str] = []
    for step in steps:
        path = folder / name_of(step)
        found: list[Any] = [None] * ranks
        dist.all_gather_object(found, problem_of(path, rank, ranks))
        problem = next(filter(None, found), None)
        if problem is None:
            return Found(path, manifest_of(path), tuple(problems))
        problems.append(problem)
        if not rank:
            set_aside(path, DAMAGED)
    if problems:
        message = f"no checkpoint in {path_shown(folder)} is whole: {problems[0]}"
        raise DamagedCheckpointError(message)
    return None


def problem_of(path: Path, rank: int, ranks: int) -> str | None:
    """What is wrong with a rank's share of a checkpoint's files; None if nothing is."""
    try:
        files = manifest_of(path)["files"]
        for name in sorted(files)[rank::ranks]:
            if digest_of(path / name) != Written(**files[name]):
                return f"{path_shown(path / name)} is not what was written"
    except DamagedCheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{path_shown(error.filename)} cannot be read: {error.strerror}"
    return None


def saved_tensors(found: Found) -> dict[str, Saved]:
    """A checkpoint's tensors by name."""
    grid = parse_plan(found.manifest["plan"]).grid
    opened = cache(lambda rank: TensorFile(found.path / rank_file(rank)))

    def saved(name: str, layout: Layout, ranks: Sequence[int]) -> Saved:
        def read(rank: int) -> torch.Tensor:
            return opened(rank)[name]

        return Saved(layout, grid, tuple(ranks), read)

    tensors = found.manifest["tensors"].items()
    return {name: saved(name, _layout(raw["layout"]), raw["ranks"]) for name, raw in tensors}


def _layout(raw: dict[str, Any]) -> Layout:
    """A layout back from JSON, which has lists for tuples."""
    split = tuple(tuple(axes) for axes in raw["split"])
    lists = {key: tuple(raw[key]) for key in ("shape", "padded", "bands", "flat")}
    return Layout(**{**raw, **lists, "split": split})
