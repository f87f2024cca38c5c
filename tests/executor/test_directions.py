"""Random directions: normal numbers, the same wherever an element lies."""

from __future__ import annotations

from math import prod

import pytest
import torch

from executor.kernels.updates.directions import Cut, Cutting, draw
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from executor.weights import join
from tests.reference_zeroth_order import normal_numbers
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan_text import parse_plan

CPU = torch.device("cpu")
WHOLE: Cut = ((1000, 300), (1000, 300), ((), ()), (), (), 0)


def place(text: str, rank: int) -> RankContext:
    return RankContext(grid=parse_plan(text).grid, rank=rank, device=CPU, adamw=AdamW())


def test_numbers_along_a_direction_are_standard_normal() -> None:
    cutting = Cutting(WHOLE, place("dp=1", 0))
    drawn = draw("0/1", "l0.up.w", cutting, slice(0, 300_000), torch.float64)
    assert float(drawn.mean()) == pytest.approx(0, abs=4 / 300_000**0.5)
    assert float(drawn.var()) == pytest.approx(1, abs=4 * (2 / 300_000) ** 0.5)
    assert float((drawn.abs() < 1.96).double().mean()) == pytest.approx(0.95, abs=0.002)
    assert float(drawn.abs().max()) < (2 * 27 * torch.tensor(2.0).log().item()) ** 0.5 + 1e-9
    lag = torch.corrcoef(torch.stack([drawn[1:], drawn[:-1]]))[0, 1]
    other = draw("0/2", "l0.up.w", cutting, slice(0, 300_000), torch.float64)
    between = torch.corrcoef(torch.stack([drawn, other]))[0, 1]
    assert abs(float(lag)) < 0.01 > abs(float(between))


@pytest.mark.parametrize(
    "text", ["tp=2,y=2,z=2", "tp=3,z=2,dp=2,zero=3", "tp=2,z=3,dp=2,zero=3,order=dp-z-tp-y-pp"]
)
def test_parts_of_a_direction_make_the_whole_one(text: str) -> None:
    """Queries, keys and values as bands, a padded table, tiles with zeros behind them."""
    gpt = GPT.of(
        name="odd",
        layers=1,
        hidden=24,
        heads=6,
        kv_heads=6 if "tp=3" in text else 2,
        ffn=54,
        sequence=8,
        vocab=101,
    )
    plan = parse_plan(f"{text},batch=12,optimizer=mezo,precision=fp64")
    program = lower(gpt, plan)
    for op in program.ops:
        if op.kind != "perturb" or op.micro_batch:
            continue
        for name, cut in zip(op.attributes["parameters"], op.attributes["cuts"], strict=True):
            shape, layout = program.buffers[name].shape, program.layouts[name]
            parts = {}
            for rank in range(plan.grid.ranks):
                cutting = Cutting(cut, place(text, rank))
                parts[rank] = draw("0/1", name, cutting, slice(0, prod(shape)), torch.float64)
            whole = join(parts, layout, plan.grid)
            torch.testing.assert_close(whole, normal_numbers("0/1", name, layout.shape))
