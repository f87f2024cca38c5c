"""Tokens and weights: every plan sees the same batch and the same model, cut differently."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.data.batches import batch_of, share
from executor.data.corpus import check_text, read_text
from executor.errors import TextError
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from executor.weights import cut, initial_value, join
from tests.messages import names
from workload.gpt import find_model
from workload.grid import Grid
from workload.layout import DECAYS, RESIDUAL, STEPS, TAPS, Layout
from workload.lowering import lower
from workload.plan import Plan
from workload.plan_text import parse_plan

TINY = find_model("tiny-30k")
CPU = torch.device("cpu")
size = st.sampled_from([1, 2, 3, 4])


def test_the_default_text_is_there_and_long_enough_for_every_tiny_model() -> None:
    text = read_text(None)
    check_text(text, find_model("tiny-25m"))
    assert b"assert" in text


def test_a_text_of_exactly_one_sequence_and_a_target_will_do(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(TINY.sequence + 1)))
    text = read_text(str(path))
    check_text(text, TINY)
    batch = batch_of(text, TINY, 3, 0, 0)
    assert batch.tolist() == [list(range(TINY.sequence + 1))] * 3
    with pytest.raises(TextError, check=names("16 bytes", "17", f"sequence={TINY.sequence}")):
        check_text(text[:-1], TINY)


def test_a_mapped_file_gives_the_tokens_of_its_bytes_in_memory(tmp_path: Path) -> None:
    """A text of several pages, whose windows were once cut out of a copy of all of it."""
    whole = bytes(random.Random(7).randbytes(5 * mmap.PAGESIZE + 3))
    path = tmp_path / "text"
    path.write_bytes(whole)
    text = read_text(str(path))
    assert isinstance(text, mmap.mmap)
    copied = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
    for step, seed in ((0, 0), (3, 0), (1, 9)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(whole) - TINY.sequence, (64,), generator=generator)
        old = copied[starts[:, None] + torch.arange(TINY.sequence + 1)].to(torch.int64)
        assert torch.equal(batch_of(text, TINY, 64, step, seed), old)


def test_a_batch_of_a_text_of_a_tebibyte_touches_its_windows_alone(tmp_path: Path) -> None:
    """A file without blocks: reading or copying all of it would end in MemoryError, or never."""
    path = tmp_path / "text"
    with path.open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert not batch_of(read_text(str(path)), TINY, 4, 0, 0).any()


def test_a_text_is_a_regular_file_and_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(TextError, check=names(path)):
            read_text(path)
    (tmp_path / "empty").touch()
    with pytest.raises(TextError, check=names("0 bytes")):
        check_text(read_text(str(tmp_path / "empty")), TINY)


def test_batches_differ_by_step_and_seed_alone() -> None:
    text = read_text(None)
    first = batch_of(text, TINY, 4, 0, 0)
    assert torch.equal(first, batch_of(text, TINY, 4, 0, 0))
    assert not torch.equal(first, batch_of(text, TINY, 4, 1, 0))
    assert not torch.equal(first, batch_of(text, TINY, 4, 0, 1))
    assert not torch.equal(batch_of(text, TINY, 4, 1, 0), batch_of(text, TINY, 4, 0, 1))


@given(x=size, y=size, z=size, data=size, micro_batch=size, count=size)
def test_the_shares_of_all_cells_are_the_batch(
    x: int, y: int, z: int, data: int, micro_batch: int, count: int
) -> None:
    batch = z * data * micro_batch * count
    plan = Plan(tp=x, y=y, z=z, dp=data, batch=batch, mbs=micro_batch)
    rows = torch.arange(batch)
    seen: dict[tuple[int, int], list[int]] = {}
    for rank in range(plan.grid.ranks):
        place = RankContext(grid=plan.grid, rank=rank, device=CPU, adamw=AdamW())
        mine = torch.cat([share(rows, plan, place, m) for m in range(count)]).tolist()
        cell = place.index("z"), place.index("dp")
        assert seen.setdefault(cell, mine) == mine
    assert sorted(row for mine in seen.values() for row in mine) == rows.tolist()


axes = st.sampled_from([(), ("tp",), ("y",), ("tp", "y"), ("y", "tp")])


@given(
    grid=st.builds(Grid, tp=size, y=size, z=size, dp=size),
    split=st.tuples(axes, axes).filter(lambda pair: not set(pair[0]) & set(pair[1])),
    blocks=st.tuples(size, size),
    missing=st.integers(0, 3),
    bands=st.sampled_from([1, 3]),
    flat=st.booleans(),
)
def test_cut_and_join_are_inverse(
    grid: Grid,
    split: tuple[tuple[str, ...], tuple[str, ...]],
    blocks: tuple[int, int],
    missing: int,
    bands: int,
    flat: bool,
) -> None:
    rows = grid.size(*split[0]) * blocks[0] * (grid.z if flat else 1)
    columns = grid.size(*split[1]) * blocks[1] * bands
    shape = (max(rows - missing, 1), columns)
    widths = (columns // bands,) * bands if bands > 1 else ()
    layout = Layout(shape, (rows, columns), split, widths, ("z",) if flat else ())
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float64).view(shape) + 1
    parts = {rank: cut(whole, layout, grid, rank) for rank in range(grid.ranks)}
    assert torch.equal(join(parts, layout, grid), whole)
    cells = grid.size(*split[0], *split[1], *(["z"] if flat else []))
    assert {part.numel() for part in parts.values()} == {rows * columns // cells}


@pytest.mark.parametrize("text", ["tp=2,y=2,z=2", "tp=8", "y=4,z=2", "dp=2"])
def test_every_parameter_of_a_program_is_cut_to_its_buffer_and_joined_again(text: str) -> None:
    program = lower(TINY, parse_plan(text))
    grid = program.plan.grid
    for name, layout in program.layouts.items():
        whole = torch.rand(layout.shape)
        parts = {rank: cut(whole, layout, grid, rank) for rank in range(grid.ranks)}
        assert all(part.numel() == program.buffers[name].elements for part in parts.values())
        assert torch.equal(join(parts, layout, grid), whole)


def test_initial_values_depend_on_name_and_seed_and_shrink_with_depth() -> None:
    layout = Layout((400, 400), (400, 400), ((), ()))
    up, again = (initial_value("l0.up.w", layout, TINY, 0) for _ in range(2))
    assert torch.equal(up, again)
    assert not torch.equal(up, initial_value("l1.up.w", layout, TINY, 0))
    assert not torch.equal(up, initial_value("l0.up.w", layout, TINY, 1))
    down = initial_value("l0.down.w", replace(layout, starts=RESIDUAL), TINY, 0)
    assert float(up.std()) == pytest.approx(0.02, rel=0.02)
    assert float(down.std()) == pytest.approx(0.02 / (2 * TINY.layers) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("starts", "share_of"),
    [
        (TAPS, lambda kept: (kept + 0.5) / (0.5 + 0.5)),
        (DECAYS, lambda kept: (kept.exp() - 1) / (16 - 1)),
        (STEPS, lambda kept: (torch.nn.functional.softplus(kept) / 0.001).log10() / 2),
    ],
)
def test_scans_start_evenly_between_the_least_and_the_most(
    starts: str, share_of: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Each of four taps between -1/2 and 1/2, decay rates between 1 and 16, kept as logarithms, and
    steps between 0.001 and 0.1, evenly in logarithms, kept as what softplus makes steps of."""
    layout = Layout((4096,), (4096,), ((),), starts=starts)
    shares = share_of(initial_value("l0.scan", layout, TINY.changed(ssm_conv=4), 0))
    quarters = torch.linspace(0, 1, 5)
    assert shares.quantile(quarters).tolist() == pytest.approx(quarters.tolist(), abs=0.03)
