"""Steps whose passes run in turns, slot by slot against op by op, to the tick and to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.attribution.pipeline_path import pipeline_causes
from simulator.engine.whole_step import simulate_step
from simulator.pipeline import simulate_pipeline
from tests.simulator.test_pipeline import assert_slots_equal_ops
from tests.simulator.worlds import SmallCosts, SmallFabric
from tests.workload.test_experts import TWO
from workload.lowering import lower
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan

RING = "pp=2,vpp=2,dp=2,ep=2"
V = "pp=2,vpp=2,dp=2,ep=2,schedule=dualpipe-v"
MEGATRON = StackBehaviour(messages="megatron")


def plan_of(words: str, micro_batches: int) -> Plan:
    return parse_plan(f"{words},mbs=1", batch=48).with_micro_batches(micro_batches)


def check(
    words: str, micro_batches: int, bytes_per_s: float, behaviour: StackBehaviour = PLAIN_BEHAVIOUR
) -> None:
    plan = plan_of(words, micro_batches)
    gpt = replace(TWO, layers=plan.pp * plan.vpp)
    assert_slots_equal_ops(gpt, plan, bytes_per_s, behaviour=behaviour)


@pytest.mark.parametrize("words", [f"{RING},overlap=a2a+wgrad+dp+pp", f"{V},overlap=a2a+ors"])
def test_pairs_equal_their_ops(words: str) -> None:
    check(words, 4, 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("bytes_per_s", [1e6, 1e8, 1e12])
@pytest.mark.parametrize("behaviour", [PLAIN_BEHAVIOUR, MEGATRON], ids=["ahead", "megatron"])
@pytest.mark.parametrize(
    "words",
    [
        f"{RING},overlap=a2a",
        f"{RING},overlap=a2a+wgrad+ors+pp,zero=3",
        f"{RING},z=2,overlap=a2a+wgrad+all,recompute=full",
        "pp=2,dp=2,ep=2,overlap=wgrad+all,tp=2,zero=1",
        "pp=3,vpp=2,dp=2,ep=2,overlap=a2a+dp+pp",
        "pp=2,vpp=3,dp=2,ep=2,overlap=all+a2a",
        "pp=4,vpp=2,dp=2,ep=2,overlap=a2a+wgrad+all",
        f"{V},overlap=all+a2a,tp=2,zero=2",
        V.replace("pp=2,", "pp=3,", 1) + ",overlap=all+a2a",
    ],
)
def test_many_pairs_equal_their_ops(
    words: str, behaviour: StackBehaviour, bytes_per_s: float
) -> None:
    for micro_batches in (12, 24):
        check(words, micro_batches, bytes_per_s, behaviour)


@pytest.mark.parametrize("words", [RING, V])
def test_what_is_hidden_is_saved_and_the_path_is_as_long_as_the_step(words: str) -> None:
    """All-to-alls that take as long as compute does: turns hide some of each pair's."""
    gpt, fabric = replace(TWO, layers=4), SmallFabric(bytes_per_s=2e7, launch_s=0.0)
    found = {}
    for overlap in ("none", "a2a"):
        plan = plan_of(f"{words},overlap={overlap}", 8)
        step = simulate_pipeline(gpt, plan, SmallCosts(), fabric)
        found[overlap] = sum(step.parts_ticks.values())
        path = pipeline_causes(gpt, plan, SmallCosts(), fabric)
        assert sum(path.values()) == found[overlap]
    assert found["a2a"] < 0.97 * found["none"]


@pytest.mark.parametrize("overlap", ["wgrad", "a2a+wgrad+dp"])
def test_a_folded_step_with_gradients_put_off_is_the_whole_one(overlap: str) -> None:
    gpt, plan = replace(TWO, layers=6), plan_of(f"dp=2,ep=2,overlap={overlap}", 10)
    worlds = SmallCosts(), SmallFabric(bytes_per_s=1e7)
    folded, whole = (simulate_step(gpt, plan, *worlds, fold=fold) for fold in (True, False))
    assert sum(folded.parts_ticks.values()) == sum(whole.parts_ticks.values())
    assert folded.memory.total_bytes == lower(gpt, plan).peak.total_bytes
    plain = plan.changed(overlap=tuple(set(plan.training.overlap) - {"wgrad"}))
    later = simulate_step(gpt, plain, *worlds)
    assert sum(folded.parts_ticks.values()) < sum(later.parts_ticks.values())
