"""gpt-oss' layers against the plain model in float64: sinks, windows, biases of routers and of
experts, clamped SwiGLU."""

from __future__ import annotations

import pytest
import torch

from executor.kernels.clamped import clamped_swiglu, clamped_swiglu_grad
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.executor.test_parity import check
from tests.executor.test_parity_experts import EIGHT, FOUR, MIXTRAL, ONE, TWO, plan_of
from tests.reference_llama import clamped_swiglu as plain
from workload.grid import Grid
from workload.op import Op

OSS = MIXTRAL.changed(
    activation="clamped_swiglu",
    biases=True,
    sinks=True,
    window=5,
    global_every=2,
)
AT = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW())
DENSE = OSS.changed(experts=0, topk=0, expert_ffn=0, router="softmax", dropout=0.1)


@pytest.mark.distributed
def test_every_axis_trains_as_the_plain_model_does() -> None:
    """Experts on two ranks, and y, over which biases of experts are summed once."""
    short = OSS.changed(layers=1, global_every=0)
    check(2, short, [plan_of(dp=2, ep=2), plan_of(y=2, recompute="selective")])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("capacity", [0.0, 0.75])
def test_under_more_plans_it_trains_as_the_plain_model_does(capacity: float) -> None:
    gpt = OSS.changed(capacity=capacity)
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(4, gpt, [*FOUR, plan_of(tp=2, y=2, recompute="selective")])
    check(8, gpt, EIGHT)


@pytest.mark.distributed
@pytest.mark.slow
def test_shared_experts_have_biases_too() -> None:
    gpt = OSS.changed(shared_ffn=32, router="sigmoid", dense_layers=1)
    check(4, gpt, FOUR[2:6])


@pytest.mark.distributed
@pytest.mark.slow
def test_without_experts_it_trains_as_the_plain_model_does() -> None:
    check(2, DENSE, TWO)


def test_gate_and_up_are_clamped_and_so_are_their_gradients() -> None:
    """At this scale many elements are beyond the limits, which no training here reaches."""
    generator = torch.Generator().manual_seed(0)
    inner = 10 * torch.randn(6, 16, dtype=torch.float64, generator=generator)
    grad = torch.randn(6, 8, dtype=torch.float64, generator=generator)
    scores = torch.rand(6, dtype=torch.float64, generator=generator)
    source, weights = inner.clone().requires_grad_(), scores.clone().requires_grad_()
    expected = plain(source) * weights[:, None]
    expected.backward(grad)  # type: ignore[no-untyped-call]
    out, d_inner, d_scores = (torch.empty_like(t) for t in (grad, inner, scores))
    op = Op("a", "weighted_clamped_swiglu", (), ())
    clamped_swiglu(op, [inner, scores], [out], AT)
    clamped_swiglu_grad(op, [grad, inner, scores], [d_inner, d_scores], AT)
    assert (inner.abs() > 7).any()
    torch.testing.assert_close(out, expected.detach())
    assert source.grad is not None
    torch.testing.assert_close(d_inner, source.grad)
    torch.testing.assert_close(d_scores, weights.grad)
