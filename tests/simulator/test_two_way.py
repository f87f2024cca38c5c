"""Steps of DualPipe: slot by slot against op by op, to the tick, the byte and the FLOP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.attribution.pipeline_path import pipeline_causes
from simulator.pipeline import simulate_pipeline
from simulator.predict import predict
from tests.simulator.test_pipeline import WORLDS, assert_slots_equal_ops
from tests.simulator.worlds import TINY, SmallCosts, SmallFabric
from tests.workload.test_experts import TWO
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan import Plan
from workload.plan_text import parse_plan


def both_ways(half: int, **keys: Any) -> Plan:
    """A plan with so many micro-batches in each direction."""
    cells = 2 * keys.get("z", 1) * keys.get("dp", 1)
    return Plan.of(batch=cells * half, mbs=1, schedule="dualpipe", **keys)


@pytest.mark.parametrize(
    ("stages", "every"), [(2, 2), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_two_directions_equal_their_ops(stages: int, every: int) -> None:
    gpt = replace(TINY, layers=2 * stages)
    for more, (overlap, grid) in enumerate(WORLDS[::-every]):
        plan = both_ways(stages + 3 * more, pp=stages, overlap=overlap, **grid)
        assert_slots_equal_ops(replace(gpt, tied=more % 2 == 0), plan)


def test_modules_for_further_tokens_beside_the_embedding_equal_their_ops() -> None:
    gpt = TINY.changed(layers=4, positions="rope", mtp_layers=2)
    assert_slots_equal_ops(gpt, both_ways(3, pp=2, tp=2))
    v = Plan.of(pp=2, vpp=2, schedule="zb-v", batch=6, mbs=1)
    assert_slots_equal_ops(replace(gpt, tied=False), v)


@pytest.mark.slow
@pytest.mark.parametrize("bytes_per_s", [1e6, 1e8, 1e12])
@pytest.mark.parametrize("more", ["a2a+ors", "all+a2a,tp=2,zero=2", "all+a2a,zero=3"])
@pytest.mark.parametrize("stages", [2, 4])
def test_pairs_of_two_directions_equal_their_ops(
    stages: int, more: str, bytes_per_s: float
) -> None:
    words = f"pp={stages},dp=2,ep=2,schedule=dualpipe,mbs=1,overlap={more}"
    for half in (stages, stages + 3):
        plan = parse_plan(words, batch=4 * half)
        assert_slots_equal_ops(replace(TWO, layers=2 * stages), plan, bytes_per_s)


def test_turns_hide_all_to_alls_and_the_path_is_as_long_as_the_step() -> None:
    gpt, fabric = replace(TWO, layers=4), SmallFabric(bytes_per_s=2e7, launch_s=0.0)
    found = {}
    for overlap in ((), ("a2a",)):
        plan = both_ways(8, pp=2, dp=2, ep=2, overlap=overlap)
        step = simulate_pipeline(gpt, plan, SmallCosts(), fabric)
        found[overlap] = sum(step.parts_ticks.values())
        path = pipeline_causes(gpt, plan, SmallCosts(), fabric)
        assert sum(path.values()) == found[overlap]
    assert found["a2a",] < 0.97 * found[()]


def test_a_step_has_the_models_flops_in_all() -> None:
    gpt, machine = replace(find_model("gpt-5b"), sequence=128), load_machine("frontier")
    plan = parse_plan("pp=4,dp=2,mbs=1,zero=1,schedule=dualpipe", batch=32)
    found = predict(gpt, plan, machine)
    flops = found.model_flops_per_s_per_device * found.step_s * found.devices
    assert flops == pytest.approx(gpt.model_flops(32))
