"""Checkpoints: whole or not there, and the same run again from them, under any plan."""

from __future__ import annotations

import errno
import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.checkpoints import writer as writing
from executor.checkpoints.belonging import about
from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.checkpoints.folder import (
    DAMAGED,
    SAVING,
    clear_drafts,
    made,
    manifest_of,
    name_of,
    prune,
    set_aside,
    steps_in,
)
from executor.checkpoints.kept_tensors import Kept, Saved, kept_of, snapshot, writer, written_by
from executor.checkpoints.manifest import rank_file
from executor.checkpoints.reading import problem_of
from executor.checkpoints.saving import Saving, interval
from executor.checkpoints.schedule import SaveSchedule
from executor.checkpoints.tensor_file import TensorFile, digest_of, write_tensors
from executor.checkpoints.writer import Draft, Writer
from executor.launching.slow_ranks import slow_among
from executor.launching.task_specs import Job
from executor.weights import cut
from tests.messages import assert_names, names
from workload.gpt import find_model
from workload.layout import Layout
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.program import Program

CPU = torch.device("cpu")
LAYOUT = Layout(shape=(2,), padded=(2,), split=((),))


def draft_of(folder: Path, rank: int = 0, ranks: int = 1, timeout_s: float = 60.0) -> Draft:
    job = Job(gpt=find_model("tiny-30k"), plan=parse_plan({"dp": ranks}), steps=9)
    return Draft(
        folder=folder,
        keep=2,
        rank=rank,
        ranks=ranks,
        token="token",
        timeout_s=timeout_s,
        about=about(job),
        kept=(Kept("w", "w", LAYOUT),),
    )


def save(folder: Path, step: int) -> Path:
    """A checkpoint of one rank with one tensor, [step, step + 1]."""
    one = Writer(draft_of(folder))
    one.write(step, {"w": torch.tensor([step, step + 1.0])})
    one.wait()
    assert one.saved.get_nowait() == step
    return folder / name_of(step)


def test_a_file_of_tensors_is_what_the_safetensors_format_says(tmp_path: Path) -> None:
    """Eight bytes of length, the header in JSON, then 2 fp32 numbers and 3 bf16 ones."""
    tensors = {"a": torch.tensor([1.0, -2.0]), "b": torch.ones(3, dtype=torch.bfloat16)}
    written = write_tensors(tmp_path / "file", tensors)
    raw = (tmp_path / "file").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    assert json.loads(raw[8 : 8 + length]) == {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]},
    }
    assert (length % 8, raw[8 + length :]) == (0, struct.pack("<2f", 1, -2) + b"\x80\x3f" * 3)
    assert written == digest_of(tmp_path / "file")
    file = TensorFile(tmp_path / "file")
    assert all(torch.equal(file[name], tensor) for name, tensor in tensors.items())


def test_a_header_that_claims_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.zeros(4)})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DamagedCheckpointError, check=names(str(path))):
        TensorFile(path)["a"]


def test_a_checkpoint_is_there_once_it_is_whole_and_the_newest_are_kept(tmp_path: Path) -> None:
    made(tmp_path / "new" / "run")
    folder = tmp_path / "new" / "run"
    for step in (2, 4, 6):
        save(folder, step)
    prune(folder, 2)
    assert steps_in(folder) == [6, 4]
    assert manifest_of(folder / name_of(6)).tensors["w"].ranks == (0,)
    assert problem_of(folder / name_of(6), 0, 1) is None


def test_a_checkpoint_of_a_step_that_is_there_already_takes_its_place(tmp_path: Path) -> None:
    first = save(tmp_path, 2).stat().st_ino
    assert save(tmp_path, 2).stat().st_ino != first
    assert [each.name for each in tmp_path.iterdir()] == [name_of(2)]


@pytest.mark.parametrize("place", [0, 9, 40, -1])
@pytest.mark.parametrize("name", [rank_file(0), "manifest.json"])
def test_a_byte_that_changed_in_any_file_is_found(tmp_path: Path, name: str, place: int) -> None:
    path = save(tmp_path, 2)
    content = bytearray((path / name).read_bytes())
    content[place] ^= 1
    (path / name).write_bytes(content)
    problem = problem_of(path, 0, 1)
    assert problem is not None
    assert name in problem


def test_a_file_that_is_missing_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    (path / rank_file(0)).unlink()
    assert_names(str(problem_of(path, 0, 1)), rank_file(0), os.strerror(errno.ENOENT))
    (path / "manifest.json").unlink()
    assert_names(str(problem_of(path, 0, 1)), "manifest.json", os.strerror(errno.ENOENT))


def test_what_a_killed_save_left_is_no_checkpoint_and_goes_with_the_next_run(
    tmp_path: Path,
) -> None:
    save(tmp_path, 2)
    draft = draft_of(tmp_path).path(4)
    draft.mkdir()
    write_tensors(draft / rank_file(0), {"w": torch.zeros(2)})
    assert draft.name.startswith(SAVING)
    assert steps_in(tmp_path) == [2]
    clear_drafts(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [name_of(2)]


def test_a_full_disk_leaves_the_former_checkpoint_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write_tensors", full)
    one = Writer(draft_of(tmp_path))
    one.write(4, {"w": torch.zeros(2)})
    one.wait()
    assert one.failed.get_nowait() == (4, os.strerror(errno.ENOSPC))
    assert [each.name for each in tmp_path.iterdir()] == [name_of(2)]
    assert problem_of(tmp_path / name_of(2), 0, 1) is None


def test_rank_0_learns_why_another_rank_could_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Writer(draft_of(tmp_path, rank, 2)) for rank in range(2))
    monkeypatch.setattr(writing, "write_tensors", _full_for(rank_file(1)))
    for each in (first, second):
        each.write(4, {"w": torch.zeros(2)})
    for each in (first, second):
        each.wait()
    step, problem = first.failed.get_nowait()
    assert step == 4
    assert_names(problem, "rank 1", os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_what_a_late_rank_writes_of_a_save_that_failed_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Writer(draft_of(tmp_path, rank, 2)) for rank in range(2))
    with monkeypatch.context() as patched:
        patched.setattr(writing, "write_tensors", _full_for(rank_file(0)))
        for each in (first, second):
            each.write(4, {"w": torch.zeros(2)})
            each.wait()
    assert [each.name for each in tmp_path.iterdir()] == [draft_of(tmp_path).path(4).name]
    for each in (first, second):
        each.write(6, {"w": torch.zeros(2)})
    for each in (first, second):
        each.wait()
    assert [each.name for each in tmp_path.iterdir()] == [name_of(6)]


def _full_for(name: str) -> Any:
    def write(path: Path, tensors: dict[str, torch.Tensor]) -> Any:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_tensors(path, tensors)

    return write


def test_a_rank_that_never_writes_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    one = Writer(draft_of(tmp_path, 0, 2, timeout_s=0.5))
    one.write(4, {"w": torch.zeros(2)})
    one.wait()
    step, problem = one.failed.get_nowait()
    assert step == 4
    assert_names(problem, rank_file(1), "0 s")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_set_aside_is_none_any_more(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step)
    set_aside(tmp_path / name_of(4), DAMAGED)
    assert steps_in(tmp_path) == [2]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "ten", "5 s", "0min", ""])
def test_an_interval_is_steps_or_a_time(text: str) -> None:
    with pytest.raises(CheckpointError, check=names("--save-every")):
        interval(text)


def test_ten_minutes_are_asked_for_at_halves_of_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of one second: asked after steps 1, 300, 450, ..., 599, and saved after 600."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(SaveSchedule, "_told", lambda _, saves, further: (saves, further))
    schedule = SaveSchedule(Saving(folder="tp", every_s=600.0), 0, CPU)
    saved = []
    for step in range(1, 1300):
        clock[0] += 1.0
        if schedule.is_due(step):
            saved.append(step)
    assert saved == [600, 1200]


@pytest.mark.parametrize("done", [0, 5, 6])
def test_a_run_is_saved_after_the_same_steps_wherever_it_goes_on(done: int) -> None:
    schedule = SaveSchedule(Saving(folder="tp", every_steps=4), done, CPU)
    due = [step for step in range(done + 1, 13) if schedule.is_due(step)]
    assert due == [step for step in (4, 8, 12) if step > done]


def test_what_is_being_written_is_not_changed_by_the_next_step() -> None:
    held = {"w": torch.zeros(2)}
    taken = snapshot([Kept("w", "w", LAYOUT)], held)  # type: ignore[arg-type]
    held["w"].fill_(1)
    assert taken["w"].tolist() == [0, 0]


ZEROS = ["zero=0", "zero=1", "zero=2", "zero=3", "zero=1,shard=2", "zero=3,shard=2"]
GRIDS = ["tp=1,y=2,z=2,dp=4", "tp=2,y=1,z=1,dp=4", "tp=2,y=2,z=1,dp=2", "tp=2,cp=2,dp=2"]


@pytest.mark.parametrize("examples", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_each_part_is_written_by_one_rank_and_read_by_any_plan(examples: int) -> None:
    words = (st.sampled_from(each) for each in (ZEROS, GRIDS, ["fp32", "bf16"]))
    settings(max_examples=examples)(given(*words)(each_part_is_written_once))()


def each_part_is_written_once(zero: str, axes: str, precision: str) -> None:
    """Whole tensors of counted numbers, cut for 8 or 16 ranks, written once, and cut again."""
    if "shard" in zero and "dp=2" in axes:
        zero = zero.partition(",")[0]
    gpt = find_model("tiny-30k")
    plan = parse_plan(f"{axes},{zero},precision={precision}", batch=16)
    grid, program = plan.grid, lower(gpt, plan)
    other = lower(gpt, parse_plan(f"tp=2,precision={precision}", batch=16))
    targets = {each.name: each.layout for each in kept_of(other)}
    for kept in list(kept_of(program))[::7]:
        count = int(torch.Size(kept.layout.shape).numel())
        whole = torch.arange(1.0, count + 1).view(kept.layout.shape)
        parts = {rank: cut(whole, kept.layout, grid, rank) for rank in range(grid.ranks)}
        writers = sorted({writer(kept.layout, grid, rank) for rank in range(grid.ranks)})
        for rank in range(grid.ranks):
            assert torch.equal(parts[rank], parts[writer(kept.layout, grid, rank)])
        check_one_writer(parts, {rank: writer(kept.layout, grid, rank) for rank in parts})
        saved = Saved(kept.layout, grid, tuple(writers), parts.__getitem__)
        assert torch.equal(saved.part(kept.layout, grid, 3), parts[3])
        layout, its = targets[kept.name], other.plan.grid
        assert torch.equal(saved.part(layout, its, 1), cut(whole, layout, its, 1))


def test_a_rank_is_slow_that_takes_one_and_a_half_times_the_median() -> None:
    assert slow_among({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.149}) == []
    (said,) = slow_among({4: 0.1, 5: 0.16})
    assert_names(said, "rank 5", "1.6")
    assert slow_among({0: 0.001, 1: 0.015}) == []


@pytest.mark.parametrize(
    "split",
    [
        "dp=4,ep=2,zero=1",
        "dp=4,ep=2,zero=3",
        "dp=4,ep=4",
        "tp=2,dp=2,ep=4,etp=1,sp=true,zero=1",
        "cp=2,dp=2,ep=2,zero=2",
        "cp=4,ep=2,zero=1",
        "cp=2,dp=2,ep=4,zero=1",
        "tp=4,ep=2,etp=2,sp=true",
        "tp=4,dp=2,ep=2,etp=1,sp=true,zero=3",
        "tp=2,dp=4,ep=2,etp=4,sp=true,zero=1",
        "cp=8,ep=2,etp=2,zero=1",
        "dp=8,ep=2,shard=4,zero=3",
        "tp=2,dp=4,ep=4,etp=1,sp=true,shard=2,zero=1",
    ],
)
def test_every_part_of_all_experts_is_written(split: str) -> None:
    gpt = find_model("tiny-mixtral-130k")
    plan = parse_plan(split, batch=8)
    program, grid = lower(gpt, plan), plan.grid
    other = lower(gpt, parse_plan("tp=2", batch=8))
    for kept in (each for each in kept_of(program) if ".l1." in f".{each.name}"):
        count = int(torch.Size(kept.layout.shape).numel())
        whole = torch.arange(1.0, count + 1).view(kept.layout.shape)
        parts = {rank: cut(whole, kept.layout, grid, rank) for rank in range(grid.ranks)}
        writers = {rank: writer(kept.layout, grid, rank) for rank in range(grid.ranks)}
        for rank, by in writers.items():
            assert torch.equal(parts[rank], parts[by]), kept.name
        check_one_writer(parts, writers)
        saved = Saved(kept.layout, grid, tuple(sorted(set(writers.values()))), parts.__getitem__)
        layout, its = kept_layout(other, kept.name), other.plan.grid
        assert torch.equal(saved.part(layout, its, 1), cut(whole, layout, its, 1))


def test_of_two_copies_of_the_model_one_is_written_and_both_are_read() -> None:
    """Each part once, by the first half of the stages; a rank of the second half reads what the one
    at its place in the opposite stage wrote, and ranks of another grid the parts that they hold."""
    gpt = replace(find_model("tiny-30k"), layers=4)
    two_way = "pp=4,tp=2,dp=2,schedule=dualpipe,mbs=1,zero=1"
    plan = parse_plan(two_way, batch=32)
    grid, stages = plan.grid, [lower(gpt, plan, stage) for stage in range(4)]
    at = {rank: grid.coordinates(rank) for rank in range(grid.ranks)}
    held = {rank: list(kept_of(stages[place["pp"]])) for rank, place in at.items()}
    written = {r: [k.name for k in written_by(stages[at[r]["pp"]], r)] for r in at}
    assert not any(names for rank, names in written.items() if at[rank]["pp"] > 1)
    plain = lower(gpt, parse_plan("tp=4", batch=32))
    targets = {each.name: each.layout for each in kept_of(plain)}
    assert {name for names in written.values() for name in names} == targets.keys()
    for kept in {each.name: each for own in held.values() for each in own}.values():
        count = int(torch.Size(kept.layout.shape).numel())
        whole = torch.arange(1.0, count + 1).view(kept.layout.shape)
        writers = tuple(rank for rank, names in written.items() if kept.name in names)
        parts = {rank: cut(whole, kept.layout, grid, rank) for rank in writers}
        assert len({float(part.reshape(-1)[0]) for part in parts.values()}) == len(writers)
        saved = Saved(kept.layout, grid, writers, parts.__getitem__)
        for rank in (rank for rank, own in held.items() if kept in own):
            expected = cut(whole, kept.layout, grid, rank)
            assert torch.equal(saved.part(kept.layout, grid, rank), expected), (kept.name, rank)
        layout, its = targets[kept.name], plain.plan.grid
        assert torch.equal(saved.part(layout, its, 3), cut(whole, layout, its, 3))


def check_one_writer(parts: dict[int, torch.Tensor], writers: dict[int, int]) -> None:
    """No part, known by its first number, is written twice; padding has zeros alone."""
    by: dict[float, int] = {}
    for rank, part in parts.items():
        if first := float(part.reshape(-1)[0]):
            assert by.setdefault(first, writers[rank]) == writers[rank]


def kept_layout(program: Program, name: str) -> Layout:
    return next(each.layout for each in kept_of(program) if each.name == name)
