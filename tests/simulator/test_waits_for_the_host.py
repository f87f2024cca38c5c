"""The time in which a device waits for the host that issues kernels: apart from its kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.attribution.breakdown import breakdown
from simulator.attribution.compute_ops import compute_ops
from simulator.attribution.critical_path import OF_HOST, Cause, simulated_step, ticks_by_cause
from simulator.attribution.pipeline_path import pipeline_causes
from simulator.attribution.time_shares import shares_of
from simulator.costs.analytic import compute_costs
from simulator.engine.simulate import Prices, host_waits, rank_tasks, simulate_ops
from simulator.engine.stream_graph import graph_of
from simulator.engine.ticks import TICKS_PER_S, to_ticks
from simulator.explain.why import why
from simulator.predict import Prediction, predict
from simulator.ranks.classes import classes_of
from simulator.ranks.fabric import fabric_of
from simulator.stacks import load_stack
from simulator.stacks.host import with_hosts
from simulator.stacks.job import Job, job_of
from tests.messages import assert_names
from tests.simulator.worlds import GivenSeconds, SmallCosts, SmallFabric, by_hand, compute
from topologies.machine_files import load_machine
from topologies.placement import contiguous
from workload.gpt import find_model
from workload.kinds import Work
from workload.op import Op

MACHINE = load_machine("dgx-h100")
# One without a pipeline, and one whose micro-batches are many.
PLANS = {"dp=8,ep=8,mbs=1": 32, "dp=4,pp=2,ep=4,mbs=1": 64}


class SlowHost(GivenSeconds):
    """Ops by name, each of which the host takes two seconds to issue."""

    def host_s(self, op: Op) -> float:
        return 2.0


class Graphs(SmallCosts):
    """Equal kernels of which the host issues those of one label alone, in three seconds."""

    def host_s(self, op: Op) -> float:
        return 3.0 if op.label == "first" else 0.0


@pytest.mark.parametrize("order", [("first", "replayed"), ("replayed", "first")])
def test_equal_kernels_with_other_labels_have_hosts_of_their_own(order: tuple[str, str]) -> None:
    """Two kernels of 1 s in a layer, one of which begins a graph and is issued in 3 s: with the
    other one, which the graph replays, the block lasts 3 s, not 6 or 2."""
    ops = [compute(f"m0.l0.{label}", writes=label) for label in order]
    program = by_hand("tp=1", *ops)
    costs, network = Graphs(launch_s=1.0), classes_of([program], SmallFabric())
    (task,) = rank_tasks([program], network)
    assert host_waits(task, Prices(costs, network)).sum() == TICKS_PER_S


def test_what_is_missing_in_a_block_is_a_wait_for_the_host() -> None:
    """Kernels of 1 and 2 s, each issued in 2 s, last 4 s: 1 s is missing."""
    program = by_hand("tp=1", compute("one", writes="a"), compute("two", reads="a", writes="b"))
    costs, fabric = SlowHost(one=1.0, two=2.0), SmallFabric()
    network = classes_of([program], fabric)
    (task,) = rank_tasks([program], network)
    assert host_waits(task, Prices(costs, network)).sum() == TICKS_PER_S
    run = simulate_ops(program, costs, network)
    copies, hosts = np.array([3, 3]), host_waits(task, Prices(costs, network))
    found = breakdown(graph_of(program.outline), run.start[0], run.end[0], copies, hosts)
    assert {key: ticks for key, ticks in found.items() if ticks} == {
        "compute": 9 * TICKS_PER_S,
        "host": 3 * TICKS_PER_S,
    }
    path = simulated_step([program], costs, fabric).path()
    kernels = 3 * TICKS_PER_S
    assert ticks_by_cause(path) == {Cause("", "elementwise kernels"): kernels, OF_HOST: TICKS_PER_S}


def asked(text: str) -> Job:
    gpt = replace(find_model("qwen3-30b-a3b"), layers=4, vocab=4096)
    return job_of(gpt, text, load_stack("nemo"), devices=8, batch=PLANS[text])


def predicted(job: Job, factor: float) -> Prediction:
    stack = job.stack.with_hosts(factor)
    return predict(job.gpt, job.plan, MACHINE, stack=stack)


@pytest.mark.parametrize("text", PLANS)
def test_kernels_take_as_long_however_slow_the_host_is(text: str) -> None:
    job = asked(text)
    none, usual, slow = (predicted(job, factor) for factor in (0, 1, 2))
    assert "host" not in none.breakdown_s
    assert 0 < usual.breakdown_s["host"] < slow.breakdown_s["host"] / 2
    for each in (usual, slow):
        assert each.breakdown_s["compute"] == pytest.approx(none.breakdown_s["compute"], rel=1e-3)
        assert sum(each.breakdown_s.values()) == pytest.approx(each.step_s, rel=1e-12)
        busy_s = each.breakdown_s["compute"] + each.breakdown_s["optimizer"]
        assert each.cost.busy == pytest.approx(busy_s / each.step_s, rel=1e-12)


@pytest.mark.parametrize("text", PLANS)
def test_ops_and_shares_of_a_step_leave_the_host_apart(text: str) -> None:
    job = asked(text)
    prediction, fabric = predicted(job, 1), fabric_of(MACHINE, 8)
    kernels = job.stack.kernels(job.gpt, job.plan, MACHINE)
    costs = compute_costs(MACHINE, fabric.ranks_per_node, 8, kernels)
    parts = prediction.breakdown_s
    ops = compute_ops(job.gpt, job.plan, costs, fabric, behaviour=kernels.behaviour).ops
    busy = to_ticks(parts["compute"]) + to_ticks(parts["optimizer"])
    assert sum(each.ticks for each in ops) == busy
    if job.plan.pp == 1:
        seconds = shares_of(prediction, costs, fabric, kernels.behaviour).seconds
        assert seconds[OF_HOST] == pytest.approx(parts["host"], rel=0.02)


def test_a_path_that_is_walked_slot_by_slot_has_waits_for_the_host_of_their_own() -> None:
    job, fabric = asked("dp=4,pp=2,ep=4,mbs=1"), fabric_of(MACHINE, 8)
    found = []
    for factor in (0, 1, 2):
        kernels = job.stack.with_hosts(factor).kernels(job.gpt, job.plan, MACHINE)
        costs = compute_costs(MACHINE, fabric.ranks_per_node, 8, kernels)
        found.append(pipeline_causes(job.gpt, job.plan, costs, fabric, behaviour=kernels.behaviour))
    none, usual, slow = found
    assert none.get(OF_HOST, 0) == 0 < usual[OF_HOST] < slow[OF_HOST] / 2
    products = Cause("", Work.MATMULS.value)
    assert usual[products] == pytest.approx(none[products], rel=1e-3)
    assert slow[products] == pytest.approx(none[products], rel=1e-3)


def test_a_host_twice_as_fast_is_among_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.explain.why._elasticities", lambda *_: [])
    job = asked("dp=8,ep=8,mbs=1")
    job = replace(job, gpt=replace(job.gpt, layers=1), plan=job.plan.with_micro_batches(1))
    prediction = predicted(job, 1)
    found = why(prediction, MACHINE, contiguous(MACHINE, 8))
    halved = next(each for each in found.better if "host's time" in each.words)
    assert halved.step_s == predicted(job, 1 / 2).step_s
    assert halved.saving > 0.05
    assert_names(found.sentence, "host", f"{100 * halved.saving:.0f} %")
    executor = predict(job.gpt, job.plan, MACHINE)
    others = why(executor, MACHINE, contiguous(MACHINE, 8)).better
    assert not [each for each in others if "host's time" in each.words]


def test_each_of_a_stacks_times_of_the_host_changes_once() -> None:
    own = load_stack("nemo").own_kernels
    changed = with_hosts(own, 3)
    assert changed["host_of_expert"]["h100"] == f"{3 * 8.6e-6!r} s"
    assert changed["fp8_casts"] == own["fp8_casts"]
    job = asked("dp=8,ep=8,mbs=1")
    usual, slow = (
        job.stack.with_hosts(factor).kernels(job.gpt, job.plan, MACHINE) for factor in (1, 3)
    )
    for field in ("host_s", "host_of_expert_s", "narrow_host_of_expert_s"):
        assert getattr(slow, field) == pytest.approx(3 * getattr(usual, field))
    assert usual.host_s == pytest.approx(113e-6)
