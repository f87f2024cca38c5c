"""Two micro-batches that take turns at experts' all-to-alls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.engine.simulate import simulate_timeline
from simulator.engine.whole_step import simulate_step
from tests.messages import names
from tests.simulator.worlds import SmallCosts, SmallFabric
from tests.workload.test_experts import TWO
from tests.workload.test_passes import values_read
from workload.errors import PlanError
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import COMPUTE
from workload.overlaps import EVERY, OVERLAPS
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

SHARED = TWO.changed(layers=3, dense_layers=1, shared_ffn=32)


def plan_of(overlap: str, micro_batches: int = 3, rest: str = "dp=2,ep=2") -> Plan:
    text = f"{rest},mbs=2,overlap={overlap}"
    return parse_plan(text, batch=4).with_micro_batches(micro_batches)


def program_of(overlap: str, micro_batches: int = 3, gpt: GPT = TWO) -> Program:
    return lower(gpt, plan_of(overlap, micro_batches))


@pytest.mark.parametrize("others", ["", "+shared+dp", "+oar+ors+oag+dp+pp"])
@pytest.mark.parametrize("gpt", [TWO, SHARED])
def test_turns_keep_every_op_and_the_values_it_reads(others: str, gpt: GPT) -> None:
    turns, plain = program_of(f"a2a{others}", 3, gpt), program_of(others[1:] or "none", 3, gpt)
    assert Counter(op.name for op in turns.ops) == Counter(op.name for op in plain.ops)
    assert values_read(turns.ops) == values_read(plain.ops)
    assert turns.comm_bytes == plain.comm_bytes


def test_each_goes_as_far_as_its_next_all_to_all() -> None:
    """Micro-batch 0 back and 1 forward through two layers; the last one has nobody beside it."""
    moved = [op for op in program_of("a2a", 2).ops if op.stream != COMPUTE]
    labels = [
        f"{op.micro_batch}.{op.part.layer}.{op.label.removesuffix('.exchange')}" for op in moved
    ]
    assert labels == [
        "0.1.combine.grad",
        "1.0.dispatch",
        "1.0.dispatch.scores",
        "0.1.dispatch.grad",
        "0.1.dispatch.scores.grad",
        "1.0.combine",
        "0.0.combine.grad",
        "1.1.dispatch",
        "1.1.dispatch.scores",
        "0.0.dispatch.grad",
        "0.0.dispatch.scores.grad",
        "1.1.combine",
    ]


@pytest.mark.parametrize("bytes_per_s", [1e7, 1e12])
def test_what_is_hidden_is_saved(bytes_per_s: float) -> None:
    """With nearly free links nothing is; else no more than all all-to-alls that moved."""

    def step_s(overlap: str) -> float:
        program = program_of(overlap)
        fabric = SmallFabric(bytes_per_s=bytes_per_s, launch_s=0.0)
        found = simulate_timeline([program], SmallCosts(), fabric)
        exchanged.append(sum(s.duration_s for s in found.of_rank(0) if s.op.stream == "ep"))
        return found.step_s

    exchanged: list[float] = []
    saved = step_s("none") - step_s("a2a")
    assert 0.5 * exchanged[1] < saved <= exchanged[1] * (1 + 1e-9)


@pytest.mark.parametrize("layers", [pytest.param(4, marks=pytest.mark.slow), 14])
def test_a_folded_step_is_the_whole_one(layers: int) -> None:
    gpt, plan = replace(TWO, layers=layers), plan_of("a2a+dp", 9)
    worlds = SmallCosts(), SmallFabric(bytes_per_s=1e8)
    folded, whole = (simulate_step(gpt, plan, *worlds, fold=fold) for fold in (True, False))
    assert sum(folded.parts_ticks.values()) == sum(whole.parts_ticks.values())
    assert folded.memory.total_bytes == whole.memory.total_bytes
    assert folded.memory.total_bytes == lower(gpt, plan).peak.total_bytes


@pytest.mark.parametrize("plan", ["dp=2", "pp=2,dp=2,ep=2", "dp=2,ep=2,schedule=gpipe"])
def test_turns_without_all_to_alls_or_with_a_pipeline_are_refused(plan: str) -> None:
    with pytest.raises(PlanError, check=names("overlap=a2a")):
        parse_plan(f"{plan},batch=8,mbs=1,overlap=a2a")


def test_all_leaves_them_out_unless_they_are_named() -> None:
    assert plan_of("all").training.overlap == OVERLAPS
    assert set(plan_of("all+a2a").training.overlap) == {*OVERLAPS, "a2a"} == set(EVERY) - {"wgrad"}
