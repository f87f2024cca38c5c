"""Tiles of matrices that Muon takes apart and puts together, without ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from executor.kernels.updates.muon import merge_tiles, take_tile
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.executor.test_parity_experts import MIXTRAL
from workload.lowering import lower
from workload.op import Op
from workload.plan_text import parse_plan
from workload.program import Program

PLAN = "tp=2,y=2,batch=2,optimizer=muon,precision=fp64"


def ops_of(program: Program, weight: str) -> tuple[Op, Op]:
    """What merges a weight's tiles, and what takes one of its update."""
    merge = next(op for op in program.ops if op.kind == "merge_tiles" and weight in op.writes[0])
    take = next(op for op in program.ops if op.kind == "take_tile" and weight in op.writes[0])
    return merge, take


@pytest.mark.parametrize("weight", ["l0.experts.up.w", "l0.experts.down.w", "l0.qkv.w"])
def test_tiles_of_all_ranks_make_the_matrices_that_they_are_tiles_of(weight: str) -> None:
    """The gathered tiles lie by ranks of y, and for each of these by ranks of x; bands side by side
    are split each by themselves."""
    gpt = MIXTRAL.changed(kv_heads=2)
    plan = parse_plan(PLAN)
    program = lower(gpt, plan)
    merge, take = ops_of(program, weight)
    layout = program.layouts[weight]
    draw = torch.Generator().manual_seed(0)
    whole = torch.randn(layout.shape, generator=draw, dtype=torch.float64)
    bands = whole.split_with_sizes(list(layout.bands or layout.shape[-1:]), -1)
    turned = merge.attributes["on_side"]
    matrices = [band.mT if flip else band for band, flip in zip(bands, turned, strict=True)]

    def tile(parts: Sequence[torch.Tensor], y: int, x: int) -> torch.Tensor:
        row, column = (x, y) if layout.split[-2] == ("tp",) else (y, x)
        rows = [part.chunk(2, -2)[row] for part in parts]
        return torch.cat([each.chunk(2, -1)[column] for each in rows], -1)

    def at(rank: int) -> RankContext:
        return RankContext(grid=plan.grid, rank=rank, device=torch.device("cpu"), adamw=AdamW())

    gathered = torch.cat([tile(bands, y, x).flatten() for y in range(2) for x in range(2)])
    merged = [torch.empty(each.shape, dtype=torch.float64) for each in matrices]
    merge_tiles(merge, [gathered], merged, at(0))
    for found, each in zip(merged, matrices, strict=True):
        norms = each.flatten(-2).norm(dim=-1)[..., None, None]
        torch.testing.assert_close(found, each / norms, rtol=1e-13, atol=0)
    scaled = [0.2 * max(band.shape[-2:]) ** 0.5 * band for band in bands]
    for rank in range(4):
        expected = tile(scaled, rank // 2, rank % 2)
        out = torch.empty(expected.shape, dtype=torch.float64)
        take_tile(take, [each.contiguous() for each in matrices], [out], at(rank))
        torch.testing.assert_close(out, expected, rtol=1e-13, atol=0)
