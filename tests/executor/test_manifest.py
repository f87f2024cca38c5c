"""Manifests whose digest is right and whose content is not, and what is no file at all."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.checkpoints.folder import DAMAGED, MANIFEST, manifest_of, name_of, set_aside, steps_in
from executor.checkpoints.manifest import manifest_text, rank_file
from executor.checkpoints.reading import problem_of
from executor.checkpoints.tensor_file import digest_of, write_tensors
from tests.executor.test_checkpoints import save
from tests.messages import assert_names

Edit = Callable[[dict[str, Any]], object]


def edited(checkpoint: Path, edit: Edit) -> Path:
    """The checkpoint with a manifest that says something else, under a right digest."""
    path = checkpoint / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))["manifest"]
    edit(manifest)
    path.write_text(manifest_text(manifest), encoding="utf-8")
    return checkpoint


def of_w(key: str, value: object) -> Edit:
    return lambda m: m["tensors"]["w"]["layout"].update({key: value})


EDITS: list[Edit] = [
    lambda m: m.pop("step"),
    lambda m: m.update(step="2"),
    lambda m: m.update(step=3),
    lambda m: m.update(step=True),
    lambda m: m.update(step=2.0),
    lambda m: m.update(seed=-1),
    lambda m: m.update(batch=2**70),
    lambda m: m.update(model=[]),
    lambda m: m.update(plan={"tp": 0}),
    lambda m: m.update(plan={"tp": None}),
    lambda m: m.update(plan={"dp": 2}),
    lambda m: m.update(plan={"dp": 2**40, "batch": 2**40}),
    lambda m: m.update(adamw={"lr": "0.1"}),
    lambda m: m.update(schedule=None),
    lambda m: m.update(files={}),
    lambda m: m.update(files=None),
    lambda m: m.update(files={"../../etc/passwd": {"nbytes": 1, "sha256": "0" * 64}}),
    lambda m: m["files"].update({rank_file(1): {"nbytes": 1, "sha256": "0" * 64}}),
    lambda m: m["files"][rank_file(0)].update(nbytes=-1),
    lambda m: m["files"][rank_file(0)].update(nbytes=m["files"][rank_file(0)]["nbytes"] + 1),
    lambda m: m["files"][rank_file(0)].update(sha256="tp"),
    lambda m: m.update(tensors=[]),
    lambda m: m["tensors"]["w"].update(ranks=[]),
    lambda m: m["tensors"]["w"].update(ranks=[1]),
    lambda m: m["tensors"]["w"].update(ranks=[0, 0]),
    lambda m: m["tensors"].update(other=m["tensors"]["w"]),
    of_w("shape", [2, 2]),
    of_w("padded", [2**61]),
    of_w("padded", [1]),
    of_w("padded", [4]),
    of_w("split", [["nowhere"]]),
    of_w("split", []),
    of_w("bands", [1, 2]),
    of_w("flat", ["tp", ""]),
    of_w("tail", 1.5),
    of_w("starts", "nowhere"),
]


@pytest.mark.parametrize("number", range(len(EDITS)))
def test_a_manifest_with_a_right_digest_that_cannot_be_is_damaged(
    number: int, tmp_path: Path
) -> None:
    path = edited(save(tmp_path, 2), EDITS[number])
    problem = problem_of(path, 0, 1)
    assert problem is not None
    assert name_of(2) in problem


def test_of_a_tensor_every_writer_must_have_a_part(tmp_path: Path) -> None:
    """Two ranks of x, each with half of w: without the second's part, half of w would be noise."""

    def halved(manifest: dict[str, Any]) -> None:
        path = tmp_path / name_of(2)
        for rank in range(2):
            (path / rank_file(rank)).unlink(missing_ok=True)
            written = write_tensors(path / rank_file(rank), {"w": torch.ones(1)})
            manifest["files"][rank_file(rank)] = {
                "nbytes": written.nbytes,
                "sha256": written.sha256,
            }
        manifest |= {"plan": {"tp": 2}}
        manifest["tensors"]["w"]["layout"]["split"] = [["tp"]]
        manifest["tensors"]["w"]["ranks"] = [0, 1]

    path = edited(save(tmp_path, 2), halved)
    assert problem_of(path, 0, 1) is None
    edited(path, lambda m: m["tensors"]["w"].update(ranks=[0]))
    assert_names(str(problem_of(path, 0, 1)), "w")


def test_a_checkpoint_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    path = edited(save(tmp_path, 2), lambda m: m.update(format="simgpt-checkpoint-9"))
    with pytest.raises(CheckpointError):
        problem_of(path, 0, 1)


@pytest.mark.parametrize("name", [MANIFEST, rank_file(0)])
@pytest.mark.parametrize("kind", ["pipe", "folder", "zeros", "socket", "loop"])
def test_what_is_no_regular_file_is_damage_and_is_not_waited_for(
    kind: str, name: str, tmp_path: Path
) -> None:
    path = save(tmp_path, 2) / name
    path.unlink()
    make: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "zeros": lambda at: at.symlink_to("/dev/zero"),
        "socket": lambda at: at.symlink_to("/proc/self/fd/0"),
        "loop": lambda at: at.symlink_to(at),
    }
    if kind == "socket":
        left, right = os.pipe()
        make["socket"] = lambda at: at.symlink_to(f"/proc/{os.getpid()}/fd/{left}")
        os.close(right)
    make[kind](path)
    problem = problem_of(path.parent, 0, 1)
    assert problem is not None
    assert name in problem


@pytest.mark.parametrize("name", [MANIFEST, rank_file(0)])
def test_a_file_that_is_far_too_long_is_damage_and_is_not_read(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, 2) / name
    os.truncate(path, 2**42)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**29, limits[1]))
    try:
        assert name in str(problem_of(path.parent, 0, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"w": []}',
        b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}',
        b'{"w": {"dtype": "F32", "shape": [1e0], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}',
    ],
)
def test_a_tensor_file_with_a_right_digest_and_a_wrong_header_is_damaged(
    header: bytes, tmp_path: Path
) -> None:
    checkpoint = save(tmp_path, 2)
    file = checkpoint / rank_file(0)
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    found = digest_of(file)
    about = {"nbytes": found.nbytes, "sha256": found.sha256}
    edited(checkpoint, lambda m: m["files"].update({rank_file(0): about}))
    assert rank_file(0) in str(problem_of(checkpoint, 0, 1))


def test_names_that_no_run_gives_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("step-000000002", "step-٠٠٠٠٠٠٠٢", "step-2", f"step-{'9' * 8}.damaged"):
        (tmp_path / name).mkdir()
    assert steps_in(tmp_path) == []


@pytest.mark.parametrize("aside", ["file", "link", "full"])
def test_whatever_has_the_name_already_a_damaged_checkpoint_is_set_aside(
    aside: str, tmp_path: Path
) -> None:
    path = save(tmp_path, 2)
    taken = tmp_path / f"{name_of(2)}{DAMAGED}"
    if aside == "full":
        (taken / "inner").mkdir(parents=True)
    elif aside == "link":
        taken.symlink_to("/nowhere")
    else:
        taken.touch()
    set_aside(path, DAMAGED)
    assert steps_in(tmp_path) == []
    with pytest.raises(DamagedCheckpointError):
        manifest_of(path)
