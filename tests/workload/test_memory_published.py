"""A layer's activation memory against the published formulas.

Letters: s sequence, b micro-batch, h hidden width, a heads, t the ranks that split a layer (x).
Source: Korthikanti et al. (2205.05198), equations 2 and 4, tables 2 and 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan

SEQUENCE, T = 2048, 8
SIZES = {
    "22B": (64, 6144, 4),
    "175B": (96, 12288, 1),
    "530B": (128, 20480, 1),
    "1T": (160, 25600, 1),
}  # a, h and b of table 3; all have s = 2048 and t = 8
EVERY_SIZE = pytest.mark.parametrize(("a", "h", "b"), SIZES.values(), ids=SIZES)
# Per token, what the formulas leave out: mean and reciprocal deviation of two norms, in fp32.
STATISTICS = 2 * 2 * 4


def kept_bytes(a: int, h: int, b: int, **options: Any) -> int:
    """What one more layer keeps at the end of the forward pass."""
    gpt = GPT.of(
        name="published",
        layers=1,
        hidden=h,
        heads=a,
        ffn=4 * h,
        sequence=SEQUENCE,
        vocab=51200,
        dropout=0.1,
    )
    plan = Plan.of(tp=T, batch=b, mbs=b, attention="unfused", **options)
    one, two = (_activations(replace(gpt, layers=layers), plan) for layers in (1, 2))
    return two - one


def _activations(gpt: GPT, plan: Plan) -> int:
    use = next(use for use in lower(gpt, plan).memory if use.op == "m0.norm")
    assert use.parts["gathered"] == 0
    return use.parts["activations"]


@EVERY_SIZE
def test_tensor_parallelism_keeps_ten_bytes_whole(a: int, h: int, b: int) -> None:
    """Equation 2: s b h (10 + 24 / t + 5 a s / (h t))."""
    tokens = SEQUENCE * b
    published = tokens * (10 * h + 24 * h // T + 5 * a * SEQUENCE // T)
    assert kept_bytes(a, h, b) == published + STATISTICS * tokens


@EVERY_SIZE
def test_sequence_parallelism_splits_everything(a: int, h: int, b: int) -> None:
    """Equation 4: s b h / t (34 + 5 a s / h)."""
    tokens = SEQUENCE * b // T
    published = tokens * (34 * h + 5 * a * SEQUENCE)
    assert kept_bytes(a, h, b, sp=True) == published + STATISTICS * tokens


@EVERY_SIZE
def test_selective_recomputation_drops_the_squares(a: int, h: int, b: int) -> None:
    """Table 2: s b h (10 + 24 / t), and with sequence parallelism 34 s b h / t."""
    tokens, part = SEQUENCE * b, SEQUENCE * b // T
    whole = kept_bytes(a, h, b, recompute="selective")
    assert whole == tokens * (10 * h + 24 * h // T) + STATISTICS * tokens
    split = kept_bytes(a, h, b, recompute="selective", sp=True)
    assert split == part * 34 * h + STATISTICS * part


@EVERY_SIZE
def test_full_recomputation_keeps_a_layers_input(a: int, h: int, b: int) -> None:
    """Table 2: 2 s b h."""
    assert kept_bytes(a, h, b, recompute="full") == 2 * SEQUENCE * b * h
