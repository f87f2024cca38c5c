"""The kernels of norms of heads, and the rates of scaled RoPE, against autograd and by hand."""

from __future__ import annotations

import math

import pytest
import torch

from executor.kernels.attentions.head_norms import head_norm, head_norm_grad
from executor.kernels.attentions.rotation import turning_rates
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.blocks import BLOCK
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes

ROWS, WIDTH, START, COUNT = 6, 4, 2, 3  # of the heads 2, 3 and 4 of six
AT = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW(lr=0.1))
SLICED = RankContext(grid=Grid(), rank=0, device=AT.device, adamw=AT.adamw, scratch=1)


@pytest.mark.parametrize("at", [AT, SLICED])
@pytest.mark.parametrize("first", [True, False])
def test_heads_are_normalised_in_place_and_others_left_alone(at: RankContext, first: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    fused, grad = (
        torch.randn(ROWS, 6 * WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    gain = torch.randn(WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    shape: Attributes = {"first_head": START, "count": COUNT, "width": WIDTH, "eps": 0.25}
    shape["first"] = first
    op = Op("op", "head_norm", (), (), BLOCK, attributes=shape)

    whole = fused.clone().requires_grad_()
    heads = whole.view(ROWS, 6, WIDTH)
    own = heads[:, START : START + COUNT]
    normed = own / (own.square().mean(-1, keepdim=True) + 0.25).sqrt() * gain
    expected = torch.cat([heads[:, :START], normed, heads[:, START + COUNT :]], 1).flatten(1)
    d_whole, d_gain = torch.autograd.grad(expected, [whole, gain], grad)

    found, kept = fused.clone(), torch.empty(ROWS, COUNT * WIDTH, dtype=torch.float64)
    stats = torch.empty(1, ROWS * COUNT, dtype=torch.float64)
    head_norm(op, [found, gain.detach()], [found, kept, stats], at)
    torch.testing.assert_close(found, expected.detach())
    assert torch.equal(kept, own.detach().flatten(1))

    d, old = grad.clone(), torch.ones(WIDTH, dtype=torch.float64)
    total = old.clone()
    head_norm_grad(op, [d, kept, stats, gain.detach()], [d, total], at)
    torch.testing.assert_close(d, d_whole)
    torch.testing.assert_close(total, d_gain + (0 if first else old))


def rates(scaling: str, width: int = 8, base: int = 10_000) -> tuple[list[float], float]:
    how: Attributes = {"base": base, "scaling": scaling}
    op = Op("rope", "rope", (), (), BLOCK, attributes=how)
    found, size = turning_rates(op, width, torch.float64, AT.device)
    return found.tolist(), size


def test_the_rates_of_scaled_rope_by_hand() -> None:
    # In 100 tokens the pairs turn 15.9, 1.59, 0.159 and 0.0159 times: the first is kept, the second
    # is 0.2 of the way from 1 to 4 turns, the others are divided.
    plain = [1, 0.1, 0.01, 0.001]
    numbers = "low_freq_factor=1:high_freq_factor=4:original_max_position_embeddings=100"
    kept = (100 * 0.1 / (2 * math.pi) - 1) / 3
    second = 0.1 * (kept + (1 - kept) / 8)
    cases = {
        "none": plain,
        "linear:factor=4": [rate / 4 for rate in plain],
        f"llama3:factor=8:{numbers}": [1, second, 0.00125, 0.000125],
    }
    for scaling, expected in cases.items():
        found, size = rates(scaling)
        assert found == pytest.approx(expected), scaling
        assert size == 1


def test_the_ramp_of_yarn_by_hand() -> None:
    # 32 turns in 4,096 tokens are those of pair 4 ln(4096 / (64 pi)) / ln(10^4) = 1.31, one turn
    # those of pair 2.81: so pairs 0 and 1 are kept, 3 is divided, and 2 lies in the middle.
    numbers = "factor=4:original_max_position_embeddings=4096"
    found, size = rates(f"yarn:{numbers}")
    assert found == pytest.approx([1, 0.1, 0.01 * (0.5 + 0.5 / 4), 0.001 / 4])
    assert size == pytest.approx(0.1 * math.log(4) + 1)
    assert rates(f"yarn:{numbers}:attention_factor=1.5")[1] == 1.5
    first = 4 * math.log(4096 / (64 * math.pi)) / math.log(10_000)
    last = 4 * math.log(4096 / (2 * math.pi)) / math.log(10_000)
    share = (2 - first) / (last - first)
    exact, _ = rates(f"yarn:{numbers}:truncate=0")
    assert exact[2] == pytest.approx(0.01 * (1 - share + share / 4))
