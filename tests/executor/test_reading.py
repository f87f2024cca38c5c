"""Reading a checkpoint on fewer ranks than wrote it, or on more: every file is checked by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from executor.checkpoints.errors import DamagedCheckpointError
from executor.checkpoints.folder import DAMAGED, name_of, steps_in
from executor.checkpoints.kept_tensors import Kept
from executor.checkpoints.manifest import rank_file
from executor.checkpoints.reading import Found, newest_whole, problem_of, saved_tensors
from executor.checkpoints.writer import Writer
from tests.executor.resumed import spoil
from tests.executor.test_checkpoints import draft_of
from workload.grid import Grid
from workload.layout import Layout

WRITERS = 4
# Of eight numbers each of the four ranks of the data axis has two.
LAYOUT = Layout(shape=(8,), padded=(8,), split=(("dp",),))


def save(folder: Path, step: int) -> Path:
    """A checkpoint of four ranks: step, step + 1, ..., step + 7."""
    drafts = [draft_of(folder, rank, WRITERS) for rank in range(WRITERS)]
    writers = [Writer(replace(each, kept=(Kept("w", "w", LAYOUT),))) for each in drafts]
    for part, each in zip(torch.arange(step, step + 8.0).chunk(WRITERS), writers, strict=True):
        each.write(step, {"w": part.clone()})
    for each in writers:
        each.wait()
    assert writers[0].saved.get_nowait() == step
    return folder / name_of(step)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is the one rank of a job."""
    store = FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def found_in(folder: Path, below: int | None = None) -> Found | None:
    return newest_whole(folder, below=below, rank=0, ranks=1)


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 6])
def test_a_damaged_file_of_any_writer_is_found_by_one_reader(readers: int, tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    assert [problem_of(path, rank, readers) for rank in range(readers)] == [None] * readers
    for damaged in range(WRITERS):
        file = path / rank_file(damaged)
        spoil(file)
        problems = [each for rank in range(readers) if (each := problem_of(path, rank, readers))]
        spoil(file)  # the bit is as it was
        assert len(problems) == 1
        assert rank_file(damaged) in problems[0]


@pytest.mark.usefixtures("alone")
def test_the_newest_whole_one_is_taken_and_newer_ones_are_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (2, 4, 6, 8):
        save(folder, step)
    spoil(folder / name_of(8) / rank_file(WRITERS - 1))
    (folder / name_of(6) / rank_file(1)).unlink()
    found = found_in(folder)
    assert found is not None
    assert (found.path, found.manifest.step) == (folder / name_of(4), 4)
    for step, why in zip((8, 6), found.damaged, strict=True):
        assert name_of(step) in why
    assert steps_in(folder) == [4, 2]
    assert {each.name for each in folder.glob(f"*{DAMAGED}")} == {
        f"{name_of(6)}{DAMAGED}",
        f"{name_of(8)}{DAMAGED}",
    }
    whole = saved_tensors(found)["w"].part(replace(LAYOUT, split=((),)), Grid(), 0)
    assert whole.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.usefixtures("alone")
def test_below_a_step_only_earlier_ones_are_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert found_in(folder) is None
    folder.mkdir()
    for step in (2, 4):
        save(folder, step)
    for below, taken in ((None, 4), (5, 4), (4, 2), (3, 2)):
        found = found_in(folder, below)
        assert found is not None
        assert found.manifest.step == taken
    assert found_in(folder, 2) is None
    assert steps_in(folder) == [4, 2]


@pytest.mark.usefixtures("alone")
def test_where_none_is_whole_no_run_begins_afresh_unnoticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spoil(save(folder, 2) / rank_file(2))
    with pytest.raises(DamagedCheckpointError, match=name_of(2)):
        found_in(folder)
