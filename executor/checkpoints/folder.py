"""A folder of checkpoints: their names, their manifests, and which of them are whole.

    DIR/step-00000412/                one checkpoint: the state after step 412
        manifest.json                 model, plan, seed, layouts, and each file's length and SHA-256
        rank-00000.safetensors        what rank 0 wrote
    DIR/.saving-1f3a…-00000414/       one that is being written, or was when its run was killed

A checkpoint has its name only once all of it is on the disk. Free of torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.checkpoints.manifest import Manifest, manifest_text, read_manifest
from topologies.files.printable import path_shown
from topologies.files.writing import sync_folder

MANIFEST = "manifest.json"
SAVING = ".saving-"
REMOVED = ".removed-"
DAMAGED, DIVERGED = ".damaged", ".diverged"
_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})")


def name_of(step: int) -> str:
    """The name of the checkpoint after a step."""
    return f"step-{step:08}"


def steps_in(folder: Path) -> list[int]:
    """The steps of which there are checkpoints, the newest first; none where there is no folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {path_shown(folder)}: {error.strerror}") from None
    return sorted((int(found[1]) for found in map(_NAME.fullmatch, names) if found), reverse=True)


def made(folder: Path) -> None:
    """Make the folder, where it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot save into {path_shown(folder)}: {error.strerror}") from None


def clear_drafts(folder: Path) -> None:
    """Remove what runs that were killed left half written; only the folder's owner may."""
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.name.startswith((SAVING, REMOVED)):
                _clear(entry)


def commit(draft: Path, manifest: Mapping[str, Any]) -> Path:
    """Give a draft that has all its ranks' files its manifest and its name."""
    with open(draft / MANIFEST, "x", encoding="utf-8") as file:
        file.write(manifest_text(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(draft)
    target = draft.parent / name_of(manifest["step"])
    if os.path.lexists(target):
        remove(target)
    os.rename(draft, target)
    sync_folder(target.parent)
    return target


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest."""
    for step in steps_in(folder)[keep:]:
        remove(folder / name_of(step))


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; killed meanwhile, it is no checkpoint any more."""
    gone = checkpoint.with_name(f"{REMOVED}{checkpoint.name}")
    _clear(gone)
    os.rename(checkpoint, gone)
    _clear(gone)


def set_aside(checkpoint: Path, why: str) -> Path:
    """Rename a checkpoint so that no run goes on from it; the user may look at it."""
    aside = checkpoint.with_name(checkpoint.name + why)
    with suppress(FileNotFoundError):
        _clear(aside)
        os.rename(checkpoint, aside)
    return aside


def _clear(path: Path) -> None:
    """Remove a folder with all that is in it, or whatever else has its name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def manifest_of(checkpoint: Path) -> Manifest:
    """A checkpoint's manifest, which is what was written; a DamagedCheckpointError if not."""
    path = checkpoint / MANIFEST
    manifest = read_manifest(path)
    if name_of(manifest.step) != checkpoint.name:
        wrong = f"it is of step {manifest.step}"
        raise DamagedCheckpointError(f"{path_shown(path)} is not what was written: {wrong}")
    return manifest
