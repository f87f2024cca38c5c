"""A folder of checkpoints: their names, their manifests, and which of them are whole.

    DIR/step-00000412/                one checkpoint: the state after step 412
        manifest.json                 model, plan, seed, layouts, and each file's length and SHA-256
        rank-00000.safetensors        what rank 0 wrote
    DIR/.saving-1f3a…-00000414/       one that is being written, or was when its run was killed

A checkpoint has its name only once all of it is on the disk. Free of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from topologies.files.printable import path_shown
from topologies.files.writing import sync_folder

FORMAT = "simgpt-checkpoint-1"
MANIFEST = "manifest.json"
SAVING = ".saving-"
REMOVED = ".removed-"
DAMAGED, DIVERGED = ".damaged", ".diverged"
_NAME = re.compile(r"step-(\d{8,})")
_RANK = re.compile(r"rank-\d{5,}\.safetensors")


def name_of(step: int) -> str:
    """The name of the checkpoint after a step."""
    return f"step-{step:08}"


def rank_file(rank: int) -> str:
    """The name of the file that a rank writes."""
    return f"rank-{rank:05}.safetensors"


def steps_in(folder: Path) -> list[int]:
    """The steps of which there are checkpoints, the newest first; none where there is no folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {path_shown(folder)}: {error.strerror}") from None
    return sorted((int(found[1]) for found in map(_NAME.fullmatch, names) if found), reverse=True)


def prepare(folder: Path) -> None:
    """Make the folder, without what runs that were killed left half written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = list(folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"cannot save into {path_shown(folder)}: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith((SAVING, REMOVED)):
            shutil.rmtree(entry, ignore_errors=True)


def commit(draft: Path, manifest: Mapping[str, Any]) -> Path:
    """Give a draft that has all its ranks' files its manifest and its name."""
    with open(draft / MANIFEST, "x", encoding="utf-8") as file:
        body = json.dumps(manifest, sort_keys=True)
        file.write(json.dumps({"sha256": _digest(body), "manifest": json.loads(body)}))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(draft)
    target = draft.parent / name_of(manifest["step"])
    if target.exists():
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
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(checkpoint, gone)
    shutil.rmtree(gone, ignore_errors=True)


def set_aside(checkpoint: Path, why: str) -> Path:
    """Rename a checkpoint so that no run goes on from it; the user may look at it."""
    aside = checkpoint.with_name(checkpoint.name + why)
    with suppress(FileNotFoundError):
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(checkpoint, aside)
    return aside


def manifest_of(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's manifest, which is what was written; a DamagedCheckpointError if not."""
    path = checkpoint / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        manifest: dict[str, Any] = document["manifest"]
        is_whole = document["sha256"] == _digest(json.dumps(manifest, sort_keys=True))
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path_shown(checkpoint)} is no checkpoint of this version")
    except OSError as error:
        message = f"{path_shown(path)} cannot be read: {error.strerror}"
        raise DamagedCheckpointError(message) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedCheckpointError(f"{path_shown(path)} is not what was written") from None
    if not is_whole or not all(map(_RANK.fullmatch, manifest["files"])):
        raise DamagedCheckpointError(f"{path_shown(path)} is not what was written")
    return manifest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
