"""The loss in chunks, and fused with its gradient, against the plain model: losses and weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from executor.kernels.chunked_loss import fused_loss
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.examples import one_in
from tests.executor.test_parity import TINY, check
from tests.executor.test_parity_experts import plan_of
from workload.gpt import GPT
from workload.op import Op
from workload.op_attributes import Attributes
from workload.overlaps import OVERLAPS
from workload.plan import Plan

UNTIED = replace(TINY, tied=False)
GOLDFISH = replace(TINY, goldfish_k=3, goldfish_h=2)


def plans() -> list[Plan]:
    """Chunks with every axis, with gradients that are reduced at once and at the step's end, and
    with stages that run forward passes ahead."""
    return [
        plan_of(tp=2, dp=2, loss_chunks=4, sp=True, zero=2, overlap=OVERLAPS),
        plan_of(y=2, z=2, loss_chunks=2, recompute="full"),
        plan_of(pp=2, dp=2, loss_chunks=8, micro_batches=2, schedule="zb-h1"),
        plan_of(cp=2, dp=2, loss_chunks=2, zero=3, micro_batches=2),
        plan_of(pp=2, z=2, loss="fused", micro_batches=2, schedule="gpipe"),
        plan_of(dp=4, loss="fused", loss_chunks=2, zero=3, overlap=OVERLAPS),
    ]


@pytest.mark.distributed
@pytest.mark.parametrize("gpt", one_in(2, [TINY, GOLDFISH]), ids=["tied", "goldfish"])
def test_a_loss_in_chunks_trains_as_the_plain_model_does(gpt: GPT) -> None:
    fused = plan_of(pp=2, loss="fused", loss_chunks=2, micro_batches=2, schedule="gpipe")
    check(2, replace(gpt, layers=1), [plan_of(tp=2, loss_chunks=4, sp=True)])
    check(2, gpt, [fused])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [TINY, UNTIED, GOLDFISH], ids=["tied", "untied", "goldfish"])
def test_a_loss_in_chunks_meets_every_axis(gpt: GPT) -> None:
    check(4, gpt, plans())


def place() -> RankContext:
    adamw = AdamW(lr=1.0, clip=1.0)
    return RankContext(grid=plan_of().grid, rank=0, device=torch.device("cpu"), adamw=adamw, seed=0)


def test_a_fused_loss_is_pytorchs_and_leaves_nothing_in_padded_columns() -> None:
    logits = torch.randn(6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets, total = torch.tensor([0, 3, 9, 9, 1, 5]), torch.zeros(1, dtype=torch.float64)
    plain = logits[:, :10].clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(plain, targets, reduction="sum") / 8
    (grad,) = torch.autograd.grad(expected, plain)
    how: Attributes = {"tokens": 8, "vocab": 10, "first": False}
    op = Op("loss", "fused_loss", (), (), attributes=how)
    fused_loss(op, [logits, targets, total], [logits, total], place())
    assert float(total) == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(logits[:, :10], grad, rtol=1e-12, atol=1e-15)
    assert not logits[:, 10:].any()


def test_tokens_that_a_fused_loss_leaves_out_have_no_gradient() -> None:
    """Equal logits of two words: a kept token has the loss ln 2 and the gradients -1/2 and 1/2, all
    divided by 4 tokens."""
    logits, total = torch.zeros(3, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    targets, kept = torch.tensor([0, 0, 1]), torch.tensor([1, 0, 1], dtype=torch.uint8)
    how: Attributes = {"tokens": 4, "vocab": 2, "first": True}
    op = Op("loss", "fused_loss", (), (), attributes=how)
    fused_loss(op, [logits, targets, kept, total], [logits, total], place())
    grad = torch.tensor([[-1 / 8, 1 / 8], [0, 0], [1 / 8, -1 / 8]], dtype=torch.float64)
    torch.testing.assert_close(logits, grad, rtol=1e-12, atol=1e-15)
    assert total.tolist() == pytest.approx([2 * math.log(2) / 4, 2 / 4])
