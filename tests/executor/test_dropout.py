"""Dropout's kernel: what it drops, and that every part of a tensor drops what the whole does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from executor.kernels.dropout import block_of, dropout, dropout_grad
from executor.kernels.dropout import kept as kept_of_block
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests import reference_dropout
from tests.blocks import BLOCK
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes

RATE = 0.3


def place(grid: Grid, rank: int, **changed: Any) -> RankContext:
    at = RankContext(
        grid=grid, rank=rank, device=torch.device("cpu"), adamw=AdamW(), step=3, seed=5
    )
    return replace(at, **changed)


def op_of(micro_batch: int, rows: int, name: str = "l0.out") -> Op:
    how: Attributes = {"rate": RATE, "place": name, "rows": rows}
    return Op("op", "dropout", (), (), BLOCK, attributes=how, micro_batch=micro_batch)


def kept(op: Op, shape: tuple[int, ...], at: RankContext) -> torch.Tensor:
    return kept_of_block(op, block_of(op, shape, at), at)


def test_the_kernel_drops_what_the_documented_function_says() -> None:
    mask = kept(op_of(0, 64), (64, 48), place(Grid(), 0))
    assert torch.equal(mask, reference_dropout.kept((64, 48), RATE, 5, 3, "l0.out"))


def test_the_share_of_dropped_elements_is_the_rate_within_three_deviations() -> None:
    mask = kept(op_of(0, 1000), (1000, 1000), place(Grid(), 0))
    deviation = (RATE * (1 - RATE) / 1e6) ** 0.5
    assert (~mask).double().mean().item() == pytest.approx(RATE, abs=3 * deviation)


def test_slices_of_any_size_drop_alike() -> None:
    op, at = op_of(0, 50), place(Grid(), 0)
    whole = kept(op, (50, 48), at)
    for size in (1, 48 * 32, 100 * 32, 50 * 48 * 32):
        x, mask = torch.ones(50, 48), torch.empty(50, 48, dtype=torch.uint8)
        dropout(op, [x], [x, mask], replace(at, scratch=size))
        assert torch.equal(mask.bool(), whole)


def test_a_part_of_a_block_drops_what_the_block_drops_there() -> None:
    op, at = op_of(1, 16, "l0.attention"), place(Grid(tp=2, dp=2), 3)
    block = block_of(op, (2, 3, 8, 8), at)
    part = block.part((1, 1, 2, 3), (1, 2, 5, 4))
    expected = kept_of_block(op, block, at)[1:, 1:, 2:7, 3:7]
    assert torch.equal(kept_of_block(op, part, at), expected)


def test_another_seed_step_or_place_drops_other_elements() -> None:
    at = place(Grid(), 0)
    masks = [kept(op_of(0, 64), (64, 48), at)]
    others = (replace(at, seed=9), replace(at, step=9))
    masks += [kept(op_of(0, 64), (64, 48), other) for other in others]
    masks.append(kept(op_of(0, 64, "l1.out"), (64, 48), at))
    for index, mask in enumerate(masks):
        assert all(not torch.equal(mask, other) for other in masks[:index])


@pytest.mark.parametrize("split_rows", [False, True])
def test_parts_of_the_stream_drop_what_the_whole_drops(split_rows: bool) -> None:
    """Two micro-batches of 8 rows on z=2 and dp=2: 64 rows of the batch, 12 columns."""
    grid = Grid(tp=2, z=2, dp=2) if split_rows else Grid(tp=2, y=3, z=2, dp=2)
    whole = reference_dropout.kept((64, 12), RATE, 5, 3, "l0.out")
    for rank in range(grid.ranks):
        at = place(grid, rank)
        for m in (0, 1):
            rows, columns = 8 // (2 if split_rows else 1), 12 // grid.y
            first = 8 * (4 * m + 2 * at.index("dp") + at.index("z"))
            first += rows * at.index("tp") if split_rows else 0
            left = columns * at.index("y")
            expected = whole[first : first + rows, left : left + columns]
            assert torch.equal(kept(op_of(m, 8), (rows, columns), at), expected)


def test_heads_over_x_drop_what_all_heads_together_drop() -> None:
    grid = Grid(tp=2, y=2, dp=2)
    whole = reference_dropout.kept((4, 6, 8, 8), RATE, 5, 3, "l0.attention")
    for rank in range(grid.ranks):
        at = place(grid, rank)
        heads, first = 3 * at.index("tp"), 2 * at.index("dp")
        mask = kept(op_of(0, 16, "l0.attention"), (2, 3, 8, 8), at)
        assert torch.equal(mask, whole[first : first + 2, heads : heads + 3])


def test_what_stays_is_scaled_and_the_gradient_likewise() -> None:
    op, at = op_of(0, 64), place(Grid(), 0)
    x, mask = torch.ones(64, 48, dtype=torch.float64), torch.empty(64, 48, dtype=torch.uint8)
    dropout(op, [x], [x, mask], at)
    torch.testing.assert_close(x, mask / (1 - RATE), check_dtype=False)
    grad = torch.full_like(x, 2.0)
    dropout_grad(op, [grad, mask], [grad], at)
    torch.testing.assert_close(grad, 2 * x)
