"""Modules that predict further tokens against the plain model: same losses, same weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_balance import V3
from tests.executor.test_parity_experts import FOUR, plan_of
from tests.executor.test_parity_hybrid import COARSE, NANO
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.splits.plan_values import CHOICES

LLAMA = find_model("tiny-llama-40k").changed(vocab=250, mtp_layers=1)
TIED = LLAMA.changed(tied=True, window=5, global_every=3, mtp_loss=0.5)
DEEPSEEK = V3.changed(
    mtp_layers=1,
    heads=8,
    kv_heads=0,
    head_width=4,
    q_rank=12,
    kv_rank=10,
    rope_width=2,
    value_width=5,
)
SUPER = NANO.changed(
    layers=3,
    pattern="M*E",
    mtp_layers=2,
    mtp_pattern="*E",
    mtp_shared=True,
    router_bias=True,
    balance_loss=0.1,
    expert_latent=8,
)
THREE = LLAMA.changed(mtp_layers=3, layers=2)

ONE = [plan_of(), plan_of(micro_batches=2, recompute="full", overlap=())]
TWO = [
    plan_of(tp=2),
    plan_of(tp=2, sp=True, micro_batches=2, recompute="selective"),
    plan_of(z=2, recompute="full"),
    plan_of(dp=2, zero=3),
    plan_of(pp=2, micro_batches=2),
]
MORE = [
    plan_of(tp=2, pp=2, sp=True, micro_batches=2),
    plan_of(z=2, pp=2, micro_batches=2, recompute="full"),
    plan_of(pp=2, dp=2, zero=1, micro_batches=4, schedule="zb-h1"),
    plan_of(tp=2, dp=2, zero=2),
]


@pytest.mark.distributed
def test_two_depths_behind_a_hybrid_share_their_weights() -> None:
    check(2, SUPER.changed(**COARSE), [plan_of(pp=2, micro_batches=2, stage_layers=(1, 2))])


IN_V: dict[str, Any] = {"pp": 2, "vpp": 2, "schedule": "zb-v"}
TWO_WAY: dict[str, Any] = {"pp": 2, "schedule": "dualpipe"}
FOUR_LAYERS = THREE.changed(layers=4, mtp_shared=True)


@pytest.mark.distributed
def test_beside_the_embedding_it_trains_as_the_plain_model_does() -> None:
    check(2, replace(LLAMA, layers=4), [plan_of(**IN_V, micro_batches=2)])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    "gpt", [THREE, TIED, SUPER.changed(expert_latent=0)], ids=["own", "tied", "experts"]
)
def test_on_some_columns_of_the_stream_depths_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(2, gpt, [plan_of(y=2, recompute="full", overlap=())])
    own = {"stage_layers": (gpt.layers - 1, 1)}
    plans = [plan_of(y=2, tp=2), plan_of(y=2, dp=2, zero=3), plan_of(y=2, z=2, zero=1)]
    plans += [plan_of(y=2, pp=2, micro_batches=2, **own)]
    check(4, gpt, [*plans, plan_of(y=4), plan_of(y=2, cp=2)])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOICES["context_kind"])
@pytest.mark.parametrize("name", ["own", "tied", "experts"])
def test_on_parts_of_sequences_depths_train_so_under_more_plans(name: str, kind: str) -> None:
    """The token so many further is another rank's: of eight depths, of parts with fewer tokens."""
    eight = THREE.changed(layers=1, mtp_layers=8, sequence=16)
    gpt = {"own": eight, "tied": TIED, "experts": replace(DEEPSEEK, layers=2)}[name]
    how: dict[str, Any] = {"cp": 2, "context_kind": kind}
    plans = [
        plan_of(**how, tp=2, sp=True, micro_batches=2, recompute="selective"),
        plan_of(cp=4, context_kind=kind, recompute="full"),
        plan_of(**how, dp=2, zero=3),
        plan_of(**how, **TWO_WAY, micro_batches=4, stage_layers=(gpt.layers - 1, 1)),
    ]
    if gpt.moe.experts:
        plans += [plan_of(**how, dp=2, ep=4, zero=1), plan_of(**how, z=2, ep=2)]
    check(2, gpt, [plan_of(**how, micro_batches=2)])
    check(2, replace(LLAMA, layers=4), [plan_of(**how)])
    check(4, gpt, plans)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    "gpt",
    [FOUR_LAYERS, replace(TIED, layers=4), SUPER.changed(layers=4, pattern="M**E")],
    ids=["apart", "tied", "experts"],
)
def test_beside_the_embedding_depths_train_so_under_more_plans(gpt: GPT) -> None:
    """Where the model ends on the stage that it begins on, of which there may be two."""
    late = {**IN_V, "schedule": "dualpipe-v"}
    full = {"recompute": "full", "overlap": ()}
    two = [plan_of(**IN_V, micro_batches=1), plan_of(**late, micro_batches=4, **full)]
    check(2, gpt, [*two, plan_of(**TWO_WAY, micro_batches=8)])
    every = [
        plan_of(**IN_V, tp=2, sp=True, micro_batches=4),
        plan_of(**late, dp=2, zero=2, micro_batches=4),
        plan_of(**TWO_WAY, z=2, zero=1, micro_batches=4),
        plan_of(pp=4, schedule="dualpipe", micro_batches=8),
    ]
    check(4, gpt, every)


EXPERTS = [
    plan_of(dp=2, ep=2, zero=1, micro_batches=2),
    plan_of(tp=2, ep=2, etp=1, sp=True, recompute="moe_act+layernorm"),
    plan_of(dp=2, zero=3, recompute="full"),
]
FOUR_OF_EXPERTS = [
    plan_of(pp=2, dp=2, ep=2, micro_batches=4, zero=1, stage_layers=(2, 1)),
    plan_of(tp=2, pp=2, sp=True, micro_batches=2, stage_layers=(2, 1)),
    plan_of(pp=2, dp=2, micro_batches=4, schedule="zb-h1", stage_layers=(1, 2)),
]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [SUPER, SUPER.changed(mtp_shared=False)], ids=["shared", "own"])
def test_depths_behind_a_hybrid_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    rows = plan_of(tp=2, sp=True, micro_batches=2)
    check(2, gpt, [rows, TWO[0], *TWO[2:4], TWO[1].changed(recompute="moe"), *EXPERTS])
    check(4, gpt, FOUR_OF_EXPERTS)


def test_modules_with_own_weights_are_summed_under_names_of_their_own() -> None:
    """The executor sums what has one name in one arena: of two it would leave one out."""
    gpt, plan = SUPER.changed(mtp_shared=False), FOUR_OF_EXPERTS[2]
    names = [op.name for op in lower(gpt, plan, 1).ops]
    assert sum(name.startswith("head.grads.reduce") for name in names) == 2
    assert len(set(names)) == len(names)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [THREE, THREE.changed(mtp_shared=True)], ids=["own", "shared"])
def test_three_depths_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(1, replace(gpt, tied=True, layers=1), ONE[1:])


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
