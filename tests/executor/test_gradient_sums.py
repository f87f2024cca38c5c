"""Gradients of bf16 rows are summed in fp32: bf16 cannot tell 1,025 from 1,024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import pytest
import torch

from executor.kernels import KERNELS
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.blocks import BLOCK
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes

ROWS, WIDTH = 1025, 4
AT = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW())
# Normalised with mean 0 and deviation 1, rows of +1 and -1 stay as they are.
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


def perform(
    kind: str,
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
    **about: Unpack[Attributes],
) -> None:
    KERNELS[kind](Op("op", kind, (), (), BLOCK, attributes=about), reads, writes, AT)


def ones(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize("first", [True, False])
def test_a_biass_gradient_over_1025_rows_of_ones_is_1025(first: bool) -> None:
    total = ones(WIDTH, dtype=torch.float32)
    perform("column_sum", [ones(ROWS, WIDTH)], [total], first=first)
    assert total.tolist() == [ROWS if first else ROWS + 1] * WIDTH


def test_a_micro_batchs_gradient_of_one_is_added_to_1024() -> None:
    total = torch.full((WIDTH,), 1024.0)
    perform("accumulate", [ones(WIDTH)], [total], first=False)
    assert total.tolist() == [1025] * WIDTH


@pytest.mark.parametrize("parts", [1, 2])
def test_a_positions_gradient_over_1025_sequences_of_ones_is_1025(parts: int) -> None:
    total = ones(1, WIDTH, dtype=torch.float32)
    about: Attributes = {"first": False, "sequence": 1, "row_parts": parts}
    perform("position_grad", [ones(ROWS, WIDTH)], [total], **about)
    assert total.tolist() == [[ROWS + 1] * WIDTH]


@pytest.mark.parametrize("kind", ["layernorm_grad", "layernorm_grad_sums"])
def test_a_layernorms_gain_and_bias_sum_1025_rows_in_fp32(kind: str) -> None:
    source = SIGNS.to(torch.bfloat16).repeat(ROWS, 1)
    stats = torch.stack([torch.zeros(ROWS), torch.ones(ROWS)])
    gain, bias = torch.zeros(WIDTH), torch.zeros(WIDTH)
    out = ones(ROWS, WIDTH) if kind == "layernorm_grad" else torch.empty(2, ROWS)
    reads = [ones(ROWS, WIDTH), source, stats, ones(WIDTH)]
    perform(kind, reads, [out, gain, bias], first=True)
    assert gain.tolist() == (ROWS * SIGNS).tolist()
    assert bias.tolist() == [ROWS] * WIDTH


def test_a_layernorm_in_fp32_has_the_gradients_of_torchs_own_kernel() -> None:
    """To the bit: only rows of 16 bits are summed elsewhere, and so in another order."""
    generator = torch.Generator().manual_seed(2)
    source, grad = (torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))
    kept, weight, shift = (
        each.requires_grad_() for each in (source.clone(), *torch.ones(2, WIDTH))
    )
    out, mean, rstd = torch.native_layer_norm(kept, [WIDTH], weight, shift, 0.1)
    expected = torch.autograd.grad(out, [kept, weight, shift], grad)
    stats = torch.stack([mean.detach()[:, 0], rstd.detach()[:, 0]])
    found = [torch.empty(ROWS, WIDTH), torch.empty(WIDTH), torch.empty(WIDTH)]
    perform("layernorm_grad", [grad, source, stats, torch.ones(WIDTH)], found, first=True)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", ["rmsnorm_grad", "rmsnorm_grad_sums"])
def test_an_rmsnorms_gain_sums_1025_rows_in_fp32(kind: str) -> None:
    source = SIGNS.to(torch.bfloat16).repeat(ROWS, 1)
    out = ones(ROWS, WIDTH) if kind == "rmsnorm_grad" else torch.empty(1, ROWS)
    gain = torch.zeros(WIDTH)
    reads = [ones(ROWS, WIDTH), source, torch.ones(1, ROWS), ones(WIDTH)]
    perform(kind, reads, [out, gain], first=True)
    assert gain.tolist() == (ROWS * SIGNS).tolist()


def test_a_token_that_comes_1024_times_gets_all_of_its_gradient() -> None:
    """In bf16 its row would stop at 256, where one more is half of what bf16 can add."""
    tokens = torch.tensor([1] * 1024 + [2])
    table = torch.full((3, WIDTH), torch.nan, dtype=torch.bfloat16)
    perform("embedding_grad", [tokens, ones(1025, WIDTH)], [table])
    assert table.tolist() == [[0] * WIDTH, [1024] * WIDTH, [1] * WIDTH]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_global_norm_of_bf16_gradients_is_summed_in_fp32(dtype: torch.dtype) -> None:
    """32 squares of 1.0078125 (bf16's next after 1), half of 4 squares of 1: 32.502 + 2."""
    norm = torch.empty(1)
    grads = [torch.full((32,), 1.0078125, dtype=dtype), ones(4, dtype=dtype)]
    perform("square_sum", grads, [norm], shares=(1.0, 0.5))
    assert float(norm) == pytest.approx(32 * 1.0078125**2 + 2, rel=1e-6)
