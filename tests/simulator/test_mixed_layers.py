"""Layers of several kinds: the program of all of them, and its step, from one of a few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.engine.whole_program import whole_program
from simulator.engine.whole_step import simulate_step
from simulator.result import StepResult
from tests.simulator.test_cut import assert_same
from tests.simulator.test_pipeline import assert_slots_equal_ops
from tests.simulator.worlds import SmallCosts, SmallFabric
from topologies.session import Session
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.lowering.few_layers import few_layers
from workload.plan import Plan
from workload.plan_text import parse_plan

DENSE = GPT.of(
    name="dense", layers=40, hidden=48, heads=12, ffn=96, sequence=16, vocab=64, positions="rope"
)
EXPERTS = DENSE.changed(experts=4, topk=2, expert_ffn=24, shared_ffn=24, dense_layers=3)
MODELS = {
    "experts behind 3 dense": EXPERTS,
    "experts behind 20 dense": EXPERTS.changed(layers=50, dense_layers=20),
    "every second": EXPERTS.changed(dense_layers=1, expert_every=2, layers=41),
    "windows": DENSE.changed(window=5, global_every=2),
    "five of six": DENSE.changed(window=5, global_every=6, layers=92),
    "second token": EXPERTS.changed(dense_layers=2, layers=33, mtp_layers=1),
    "hybrid": EXPERTS.changed(
        biases=False,
        norm="rmsnorm",
        dense_layers=0,
        positions="none",
        layers=44,
        pattern="M-" + "ME" * 20 + "*E",
        ssm_heads=4,
        ssm_width=8,
        ssm_state=6,
        ssm_groups=2,
        ssm_chunk=8,
    ),
    "balanced": EXPERTS.changed(router="sigmoid", router_bias=True, balance_loss=0.1),
}
PLANS = (
    "z=2,dp=2,overlap=all",
    "tp=2,dp=2,sp=true,recompute=full,overlap=none",
    "z=2,dp=2,zero=3,recompute=full:4,overlap=oar+ors+oag",
    "dp=4,zero=2,recompute=selective,overlap=dp",
)
QUICK = [("experts behind 3 dense", 0), ("every second", 3), ("windows", 1), ("second token", 2)]
EVERY = [(name, number) for name in MODELS for number in range(len(PLANS))]
OTHERS = [pytest.param(*case, marks=pytest.mark.slow) for case in QUICK[1::2]]
REST = [pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in QUICK]


def plan_for(gpt: GPT, number: int, micro_batches: int) -> Plan:
    experts = ",ep=2" if gpt.moe.experts and "dp=" in PLANS[number] else ""
    plan = parse_plan(f"{PLANS[number]}{experts},batch=4,mbs=1")
    return plan.with_micro_batches(micro_batches)


@pytest.mark.parametrize(("name", "number"), [*QUICK[::2], *OTHERS, *REST])
def test_the_program_of_all_layers_is_the_one_that_is_lowered_whole(name: str, number: int) -> None:
    gpt = MODELS[name]
    plan = plan_for(gpt, number, 2)
    found, expected = whole_program(gpt, plan), lower(gpt, plan)
    assert len(found.program.ops) < len(expected.ops)
    assert_same(found.columns, expected)
    assert found.peak(0) == expected.peak


def both(gpt: GPT, plan: Plan) -> list[StepResult]:
    """A step with what repeats left out, and without."""
    fabric, costs = SmallFabric(bytes_per_s=3e7, compute_share=0.2), SmallCosts(issue_s=1.1e-5)
    with Session():
        return [simulate_step(gpt, plan, costs, fabric, fold=fold) for fold in (True, False)]


@pytest.mark.parametrize(("name", "number"), [QUICK[2], *REST])
def test_a_step_of_layers_of_several_kinds_is_the_whole_one_to_the_tick(
    name: str, number: int
) -> None:
    few, whole = both(MODELS[name], plan_for(MODELS[name], number, 9))
    assert replace(few, micro_batches=whole.micro_batches) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_stages_that_hold_unlike_layers_equal_their_ops(name: str) -> None:
    gpt = MODELS[name]
    stages = f"stage_layers={gpt.layers - 25}+11+14"
    experts = ",ep=2" if gpt.moe.experts else ""
    plan = parse_plan(f"pp=3,dp=2{experts},recompute=full:4,{stages},batch=120,mbs=1,overlap=all")
    assert_slots_equal_ops(gpt, plan, 3e7, compute_share=0.2)


def test_runs_of_equal_layers_are_found_between_those_that_stand_alone() -> None:
    def runs(
        gpt: GPT, recompute: str = "none", overlap: str = "none", attempt: int = 0
    ) -> list[tuple[int, ...]]:
        plan = parse_plan(f"z=2,batch=2,mbs=1,recompute={recompute},overlap={overlap}")
        return [
            (run.lowered[0], run.missing[0], run.missing[-1], run.lowered[-1], run.period)
            for run in list(few_layers(gpt, plan))[attempt].runs
        ]

    deepseek = find_model("deepseek-v3")
    assert deepseek.moe.balance_loss  # that of its first layer with experts stands by itself
    assert runs(deepseek) == [(4, 5, 59, 60, 1)]
    assert runs(deepseek, overlap="oag") == [(4, 6, 58, 60, 1)]
    assert runs(deepseek, overlap="ors", attempt=1) == [(4, 7, 57, 60, 1)]
    assert runs(find_model("gpt-oss-120b")) == [(0, 2, 33, 35, 2)]
    assert runs(MODELS["five of six"]) == [(0, 6, 83, 89, 6)]
    assert runs(DENSE, "full:15") == [(0, 1, 13, 14, 1), (15, 16, 38, 39, 1)]
    assert runs(MODELS["experts behind 20 dense"]) == [(0, 1, 18, 19, 1), (20, 21, 48, 49, 1)]


def test_the_layers_of_each_chunk_of_a_stage_have_runs_of_their_own() -> None:
    plan = parse_plan("pp=2,vpp=2,batch=4,mbs=1")
    few, *_ = few_layers(DENSE, plan, 1)
    assert [run.missing for run in few.runs] == [
        tuple(range(11, 19)),
        tuple(range(31, 39)),
    ]
