"""Llama's, BLOOM's and MPT's parts against the plain model: each alone, and all together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from executor.kernels.attentions import attention, flash
from executor.launching.device_use import FLASH, MATH
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.blocks import BLOCK
from tests.executor.test_parity import (
    BATCH,
    LR,
    TINY,
    check,
    every_plan,
    sample,
)
from workload.gpt import GPT, find_model
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes
from workload.plan import Plan

SCALINGS = (  # of 16 tokens, within which the ramps of heads 4 wide begin and end
    "linear:factor=4",
    "llama3:factor=8:low_freq_factor=1:high_freq_factor=4:original_max_position_embeddings=12",
    "yarn:factor=4:original_max_position_embeddings=64",
)
ALONE = {
    "grouped queries": TINY.changed(heads=16, kv_heads=8),
    "a head width of its own": TINY.changed(head_width=6),
    "RMSNorm": replace(TINY, norm="rmsnorm"),
    "SwiGLU": replace(TINY, activation="swiglu"),
    "RoPE": replace(TINY, positions="rope"),
    "ALiBi": replace(TINY, positions="alibi"),
    "no biases": replace(TINY, biases=False),
    "a norm behind the embedding": replace(TINY, embedding_norm=True),
    "biases of queries, keys and values": TINY.changed(biases=False, qkv_bias=True),
    "norms of queries and keys": TINY.changed(norm="rmsnorm", qk_norm=True),
    "another epsilon": replace(TINY, norm_eps=1e-2),
    **{
        f"RoPE by {text.partition(':')[0]}": TINY.changed(positions="rope", rope_scaling=text)
        for text in SCALINGS
    },
}
TOGETHER = {
    "Llama": find_model("tiny-llama-40k").changed(vocab=250, rope_base=500),
    "Qwen": find_model("tiny-llama-40k").changed(
        vocab=250,
        rope_base=500,
        rope_scaling=SCALINGS[1],
        qkv_bias=True,
        qk_norm=True,
        norm_eps=1e-3,
    ),
    "BLOOM": replace(TINY, positions="alibi", embedding_norm=True),
    "MPT": replace(TINY, positions="alibi", biases=False),
    # 24 heads are no power of two, and three queries share a key.
    "all at once": find_model("tiny-llama-40k").changed(
        vocab=250,
        heads=24,
        positions="alibi",
        embedding_norm=True,
        biases=True,
        tied=True,
    ),
}


@pytest.mark.slow
@pytest.mark.distributed
def test_llama_on_grids_trains_as_the_plain_model_does() -> None:
    """On y and x, which split layers; all grids are in the slow sets below."""
    check(2, replace(TOGETHER["Llama"], layers=1), sample(2)[2:])


ROWS: dict[str, Any] = {"tp": 2, "sp": True, "batch": BATCH, "precision": "fp64"}
OF_ROWS = [
    Plan.of(**ROWS, dp=2, mbs=4, recompute="selective", zero=3),
    Plan.of(**ROWS, pp=2, mbs=4, schedule="zb-h1"),
    Plan.of(**ROWS, pp=2, mbs=4, recompute="full", attention="unfused"),
    Plan.of(tp=2, y=2, batch=BATCH, mbs=8, recompute="selective", precision="fp64"),
]


@pytest.mark.distributed
def test_qwen_with_its_rows_split_and_recomputed_trains_as_the_plain_model_does() -> None:
    """What no grid above has: norms of heads under sequence parallelism, run again."""
    check(4, TOGETHER["Qwen"], OF_ROWS[:1])


@pytest.mark.slow
@pytest.mark.distributed
def test_qwen_trains_so_under_more_plans_of_its_rows() -> None:
    check(4, TOGETHER["Qwen"], OF_ROWS)


# What neither Llama nor Qwen has, of which another quick test would tell.
OF_NONE_ABOVE = "a head width of its own", "ALiBi", "a norm behind the embedding", "RoPE by linear"


@pytest.mark.distributed
@pytest.mark.parametrize(
    "part",
    [pytest.param(each, marks=[] if each in OF_NONE_ABOVE else pytest.mark.slow) for each in ALONE],
)
def test_each_part_alone_trains_as_the_plain_model_does(part: str) -> None:
    """In a layer on y and x in turn, which split it; on all axes among the slow tests."""
    number = list(ALONE).index(part)
    check(2, replace(ALONE[part], layers=1), sample(2, first=number)[2 + number % 2 :][:1])


@pytest.mark.slow
@pytest.mark.distributed
def test_everything_at_once_trains_as_the_plain_model_does() -> None:
    check(4, TOGETHER["all at once"], sample(4, first=1))


def test_attention_in_steps_gives_what_the_flash_kernel_gives() -> None:
    fused, steps = attention_and_gradient(FLASH), attention_and_gradient(MATH)
    assert not torch.equal(steps[0], fused[0])  # sums in another order
    for ours, theirs in zip(steps, fused, strict=True):
        torch.testing.assert_close(ours, theirs)


def attention_and_gradient(backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Six queries, of which three share a key, on the second of two ranks of x."""
    shape: Attributes = {"heads": 6, "kv_heads": 2, "width": 4, "sequence": 16, "alibi": False}
    op = Op("op", "attention", (), (), BLOCK, attributes=shape)
    at = RankContext(
        grid=Grid(tp=2),
        rank=1,
        device=torch.device("cpu"),
        adamw=AdamW(lr=LR),
        attention=backend,
    )
    generator = torch.Generator().manual_seed(2)
    qkv = torch.randn(32, (6 + 2 + 2) * 4, generator=generator, dtype=torch.float64)
    grad = torch.randn(32, 24, generator=generator, dtype=torch.float64)
    context, d_qkv = torch.empty_like(grad), torch.empty_like(qkv)
    logsumexp = torch.empty(2, 6, 16, dtype=torch.float64)
    attention.attention(op, [qkv], [context, logsumexp], at)
    attention.attention_grad(op, [grad, qkv, context, logsumexp], [d_qkv], at)
    return context, d_qkv


def test_heads_filled_up_with_zeros_attend_as_before() -> None:
    """As a GPU's flash kernels want them: a multiple of 8 wide, and scaled by their own width."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 16, 6, generator=generator) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    q, k, v = (flash.padded(heads) for heads in (q, k, v))
    assert q.shape[-1] == 8
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=6**-0.5)
    torch.testing.assert_close(found[..., :6], expected)
    assert flash.padded(expected.repeat(1, 1, 1, 4)).shape[-1] == 24


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("gpt", [*ALONE.values(), *TOGETHER.values()], ids=[*ALONE, *TOGETHER])
def test_every_part_trains_on_every_grid_as_the_plain_model_does(gpt: GPT, ranks: int) -> None:
    check(ranks, gpt, sample(ranks, first=1))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_plan_trains_llama_as_the_plain_model_does(ranks: int) -> None:
    check(ranks, TOGETHER["Llama"], list(every_plan(ranks)))
