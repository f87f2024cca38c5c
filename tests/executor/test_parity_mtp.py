"""The module that predicts a second token against the plain model: same losses, same weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_balance import V3
from tests.executor.test_parity_experts import FOUR, plan_of
from workload.gpt import GPT, find_model

LLAMA = replace(find_model("tiny-llama-40k"), vocab=250, mtp_layers=1)
TIED = replace(LLAMA, tied=True, window=5, global_every=3, mtp_loss=0.5)
DEEPSEEK = replace(
    V3,
    mtp_layers=1,
    heads=8,
    kv_heads=0,
    head_width=4,
    q_rank=12,
    kv_rank=10,
    rope_width=2,
    value_width=5,
)

ONE = [plan_of(), plan_of(micro_batches=2, recompute="full", overlap=())]
TWO = [
    plan_of(x=2),
    plan_of(x=2, sequence_parallel=True, micro_batches=2, recompute="selective"),
    plan_of(z=2, recompute="full"),
    plan_of(data=2, zero=3),
    plan_of(pipe=2, micro_batches=2),
]
MORE = [
    plan_of(x=2, pipe=2, sequence_parallel=True, micro_batches=2),
    plan_of(z=2, pipe=2, micro_batches=2, recompute="full"),
    plan_of(pipe=2, data=2, zero=1, micro_batches=4, schedule="zb-h1"),
    plan_of(x=2, data=2, zero=2),
]


@pytest.mark.distributed
def test_every_axis_trains_as_the_plain_model_does() -> None:
    check(2, LLAMA, [TWO[1], TWO[4]])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [LLAMA, TIED], ids=["apart", "tied"])
def test_under_more_plans_it_trains_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(4, gpt, MORE)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_small_deepseek_with_all_of_it_trains_as_the_plain_model_does() -> None:
    check(1, DEEPSEEK, ONE)
    check(4, DEEPSEEK, [MORE[0], *FOUR[2:4], FOUR[6], FOUR[7]])
