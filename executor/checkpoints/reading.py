"""Going on from a checkpoint: the newest that is whole, found by all ranks together, and loaded.

Each rank checks the digests of its share of the files, so that a byte is read twice at most,
whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.checkpoints.errors import DamagedCheckpointError
from executor.checkpoints.folder import DAMAGED, manifest_of, name_of, set_aside, steps_in
from executor.checkpoints.kept_tensors import Saved, writer
from executor.checkpoints.manifest import Manifest, part_shape, rank_file
from executor.checkpoints.tensor_file import TensorFile, digest_of
from topologies.files.printable import path_shown, shown
from topologies.records import record
from workload.layout import Layout


@record
class Found:
    """A checkpoint to go on from, whole; `damaged` says of newer ones why they are not."""

    path: Path
    manifest: Manifest
    damaged: tuple[str, ...]


def newest_whole(
    folder: Path,
    *,
    below: int | None,
    rank: int,
    ranks: int,
    lacks: Callable[[Manifest], str] = lambda _: "",
) -> Found | None:
    """The newest whole checkpoint, of a step below a bound if there is one; None where there is
    none at all. All ranks call it, and find the same. `lacks` says what a rank misses in one.

    Newer ones that are damaged are set aside, so that they neither count nor are tried again.
    """
    names: list[Any] = [steps_in(folder) if not rank else None]
    dist.broadcast_object_list(names)
    steps = [step for step in names[0] if below is None or step < below]
    problems: list[str] = []
    for step in steps:
        path = folder / name_of(step)
        found: list[Any] = [None] * ranks
        problem = problem_of(path, rank, ranks)
        if problem is None and (lacking := lacks(manifest_of(path))):
            problem = f"{path_shown(path)} {lacking}"
        dist.all_gather_object(found, problem)
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
        manifest = manifest_of(path)
        if lacking := _lacking(manifest):
            return f"{path_shown(path)} has not every part of {shown(lacking)}"
        for its in range(rank, len(manifest.files), ranks):
            file = path / rank_file(its)
            wanted = manifest.files[file.name]
            if digest_of(file, wanted.nbytes) != wanted:
                return f"{path_shown(file)} is not what was written"
            if other := _otherwise_cut(manifest, its, TensorFile(file)):
                return f"{path_shown(file)} has {shown(other)} in another shape than its manifest"
    except DamagedCheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{path_shown(error.filename)} cannot be read: {error.strerror}"
    return None


def _lacking(manifest: Manifest) -> str | None:
    """A tensor of which a rank wrote no part that it should have; None if there is none."""
    grid = manifest.grid
    stage_of = [grid.coordinates(rank)["pp"] for rank in range(grid.ranks)]

    def writers_of(layout: Layout, stage: int) -> frozenset[int]:
        mine = (rank for rank, its in enumerate(stage_of) if its == stage)
        return frozenset(writer(layout, grid, rank) for rank in mine)

    writers = cache(writers_of)  # of few ways to split many tensors
    for name, tensor in manifest.tensors.items():
        axes = Layout((), (), tensor.layout.split, flat=tensor.layout.flat)
        stages = {stage_of[rank] for rank in tensor.ranks}
        if any(not writers(axes, stage) <= {*tensor.ranks} for stage in stages):
            return name
    return None


def _otherwise_cut(manifest: Manifest, rank: int, file: TensorFile) -> str | None:
    """A tensor in a rank's file that is not of its layout's shape; None if there is none."""
    own = ((name, each.layout) for name, each in manifest.tensors.items() if rank in each.ranks)
    others = (name for name, its in own if file.shape(name) != part_shape(its, manifest.grid))
    return next(others, None)


def saved_tensors(found: Found) -> dict[str, Saved]:
    """A checkpoint's tensors by name."""
    grid = found.manifest.grid
    opened = cache(lambda rank: TensorFile(found.path / rank_file(rank)))

    def saved(name: str, layout: Layout, ranks: Sequence[int]) -> Saved:
        def read(rank: int) -> torch.Tensor:
            return opened(rank)[name]

        return Saved(layout, grid, tuple(ranks), read)

    tensors = found.manifest.tensors.items()
    return {name: saved(name, each.layout, each.ranks) for name, each in tensors}
