"""DualPipe, with two copies of the model: same losses and weights as the plain model's, float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.executor import test_parity_recipes as recipes
from tests.executor.test_parity import BATCH, TINY, check
from tests.executor.test_parity_balance import SWITCH, V2, V3
from tests.executor.test_parity_experts import DEEPSEEK
from tests.executor.test_parity_four_bits import FEW_BITS
from tests.executor.test_parity_pipe import DEEP
from tests.executor.test_parity_rules import check as check_rule
from workload.gpt import GPT, find_model
from workload.overlaps import OVERLAPS
from workload.plan import Plan


def both_ways(micro_batches: int, **keys: Any) -> Plan:
    """A plan with so many micro-batches in each direction."""
    cells = 2 * keys.get("z", 1) * keys.get("dp", 1)
    usual = {"overlap": OVERLAPS, "precision": "fp64", "schedule": "dualpipe"}
    size = BATCH // (cells * micro_batches)
    return Plan.of(**{"batch": BATCH, "mbs": size, **usual, **keys})


@pytest.mark.distributed
def test_two_copies_train_as_the_plain_model_does() -> None:
    check(2, TINY, [both_ways(4, pp=2)])


@pytest.mark.distributed
def test_two_copies_with_experts_and_passes_in_turns_train_as_the_plain_model_does() -> None:
    turns = both_ways(2, pp=2, dp=2, ep=2, overlap=("a2a",))
    check(4, DEEPSEEK, [turns])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    "gpt",
    [
        V3.changed(layers=4, balance_over="micro_batch"),
        replace(V2, layers=4),
        replace(SWITCH, layers=4),
    ],
    ids=["V3", "V2", "Switch"],
)
def test_experts_are_balanced_by_what_both_copies_chose(gpt: GPT) -> None:
    check(2, gpt, [both_ways(2, pp=2), both_ways(4, pp=2, recompute="full", overlap=())])


@pytest.mark.distributed
def test_biases_of_routers_follow_what_both_copies_chose() -> None:
    check(2, V3.changed(balance_over="micro_batch"), [both_ways(2, pp=2)])


@pytest.mark.slow
@pytest.mark.distributed
def test_both_copies_drop_what_the_plain_model_drops() -> None:
    """Of activations by dropout and of targets by the Goldfish loss; a copy sees other sequences
    than the other one."""
    plan = both_ways(4, pp=2, attention="unfused", recompute="full")
    check(2, replace(TINY, dropout=0.5, goldfish_k=3), [plan])


@pytest.mark.slow
@pytest.mark.distributed
def test_passes_in_turns_at_all_to_alls_train_as_the_plain_model_does() -> None:
    of_experts = {"pp": 2, "dp": 2, "ep": 2}
    plans = [
        both_ways(2, **of_experts, overlap=()),
        both_ways(2, **of_experts, overlap=("a2a",)),
        both_ways(4, **of_experts, overlap=("a2a", *OVERLAPS), zero=2, recompute="full"),
        both_ways(2, **of_experts, overlap=("a2a", *OVERLAPS), dispatcher="all_gather"),
    ]
    check(4, replace(DEEPSEEK, layers=4), plans)
    check(4, V3.changed(layers=4, capacity=0.75), plans[1:2])


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("recipe", "gpt"),
    [
        pytest.param("fp8-delayed", TINY, marks=pytest.mark.slow),
        pytest.param("fp8-delayed", recipes.ROUTED, marks=pytest.mark.slow),
        pytest.param("fp8-tensorwise", TINY, marks=pytest.mark.slow),
        pytest.param("mxfp8", recipes.ROUTED_WIDE["mxfp8"], marks=pytest.mark.slow),
        pytest.param("nvfp4", FEW_BITS, marks=pytest.mark.slow),
    ],
)
def test_casts_are_the_plain_models_with_scales_of_what_both_copies_saw(
    recipe: str, gpt: GPT
) -> None:
    plan = recipes.FEW.changed(pp=2, schedule="dualpipe")
    recipes.check(2, recipes.with_recipe(replace(gpt, layers=2), recipe, plan))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("rule", ["muon", "sgd-momentum"])
def test_other_update_rules_change_both_copies_alike(rule: str) -> None:
    check_rule(2, rule, ["pp=2,mbs=4,schedule=dualpipe"])
    check_rule(4, rule, ["pp=2,tp=2,mbs=4,schedule=dualpipe"])


@pytest.mark.slow
@pytest.mark.distributed
def test_they_do_so_with_every_other_split() -> None:
    plans = [
        both_ways(2, pp=2, dp=2, zero=zero, overlap=overlap)
        for zero in range(4)
        for overlap in ((), OVERLAPS)
    ]
    plans += [
        both_ways(8, pp=4),
        both_ways(4, pp=4, stage_layers=(1, 0, 4, 3), recompute="full", overlap=()),
        both_ways(4, pp=2, z=2, zero=1),
        both_ways(4, pp=2, tp=2, sp=True),
        both_ways(4, pp=2, y=2),
        both_ways(4, pp=2, cp=2),
        both_ways(4, pp=2, dp=2, order="pp-tp-dp"),
    ]
    check(4, DEEP, plans)
    llama = replace(find_model("tiny-llama-40k"), layers=4)
    check(4, llama, [both_ways(4, pp=4), both_ways(4, pp=2, dp=2)])
    check(8, DEEP, [both_ways(8, pp=8), both_ways(4, pp=4, dp=2, zero=2)])
