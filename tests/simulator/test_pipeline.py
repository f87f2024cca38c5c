"""Pipelines slot by slot against the same pipelines op by op, and against what theory says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from simulator.engine.simulate import simulate_timeline
from simulator.engine.ticks import TICKS_PER_S, to_seconds
from simulator.pipeline import simulate_pipeline
from simulator.pipeline.pipeline_step import PipelineRun
from simulator.pipeline.stage_orders import StageOrders
from simulator.predict import predict
from simulator.result import StepResult
from simulator.search.bounds.peak_memory import stage_bytes
from tests.examples import few_and_many, slow
from tests.executor.covering import OPTIONS, Case, Row, case, is_legal, is_refused, ranks_of
from tests.simulator.worlds import TINY, Ring, SmallCosts, SmallFabric
from topologies.machine_files import load_machine
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import Op
from workload.overlaps import OVERLAPS
from workload.passes.matmul_forms import PLAIN
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.pipeline.schedule import STRAIGHT, V_SHAPED
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.sizes.arrays import Indices
from workload.transport import Transport

SCHEDULES = STRAIGHT
SHARES = (0.0, 0.3)  # of compute, that collectives beside it take
BANDWIDTHS = (1e6, 3e7, 1e8, 1e9, 1e12)  # from bound by links to bound by compute


def assert_slots_equal_ops(
    gpt: GPT,
    plan: Plan,
    bytes_per_s: float = 1e6,
    compute_share: float = 0.0,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> None:
    """The step slot by slot is that of all stages' whole programs.

    Axes do not share links here: that sums of gradients slow later slots by that is not modelled.
    """
    fabric = SmallFabric(
        bytes_per_s=bytes_per_s,
        devices_per_node=64,
        axes_share=False,
        compute_share=compute_share,
    )
    programs = [lower(gpt, plan, stage, behaviour=behaviour) for stage in range(plan.pp)]
    spans = simulate_timeline(programs, SmallCosts(), fabric).spans
    step = simulate_pipeline(gpt, plan, SmallCosts(), fabric, behaviour=behaviour)
    assert seconds(step) == pytest.approx(max(span.end_s for span in spans), rel=1e-12, abs=0)
    peaks = [program.peak.total_bytes for program in programs]
    assert step.memory.total_bytes == max(peaks)
    assert step.model_flops == sum(program.model_flops for program in programs)
    assert step.hardware_flops == sum(program.hardware_flops for program in programs)
    counted = [(len(program.ops), program.comm_bytes) for program in programs]
    assert (step.ops, step.comm_bytes) in counted


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", ["full", pytest.param("none", marks=pytest.mark.slow)])
def test_model_flops_leave_recomputation_out_under_every_schedule(
    schedule: str, recompute: str
) -> None:
    """Against Narayanan's formulas; zero-bubble schedules put some of it into slots of weights."""
    gpt, machine = replace(find_model("gpt-5b"), layers=4), load_machine("frontier")
    plan = Plan.of(pp=2, dp=2, batch=8, mbs=1, schedule=schedule, recompute=recompute)
    found = predict(gpt, plan, machine)
    device_s = found.step_s * found.devices
    assert found.model_flops_per_s_per_device * device_s == pytest.approx(gpt.model_flops(8))
    hardware = gpt.model_flops(8) if recompute == "none" else gpt.hardware_flops(8)
    assert found.hardware_flops_per_s_per_device * device_s == pytest.approx(hardware)


def seconds(step: StepResult) -> float:
    return to_seconds(sum(step.parts_ticks.values()))


def plan_of(micro_batches: int, **keys: object) -> Plan:
    cells = int(str(keys.get("z", 1))) * int(str(keys.get("dp", 1)))
    return Plan.of(batch=cells * micro_batches, mbs=1, **keys)


World = tuple[tuple[str, ...], dict[str, int]]  # an overlap and a grid in each stage
WORLDS: tuple[World, ...] = (
    (OVERLAPS, {}),
    (OVERLAPS[:-1], {"z": 2}),
    ((), {"dp": 2}),
    (OVERLAPS, {"tp": 2, "y": 2}),
    (OVERLAPS, {"dp": 2}),
    ((), {"z": 2}),
)


@pytest.mark.parametrize(("at", "schedule"), [*enumerate(SCHEDULES)])
def test_every_schedule_equals_its_ops(at: int, schedule: str) -> None:
    """In two worlds of three stages each; the slow run has them in all."""
    in_worlds(schedule, 3, [WORLDS[at], WORLDS[(at + 3) % len(WORLDS)]])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_schedule_equals_its_ops_in_every_world(schedule: str, stages: int) -> None:
    in_worlds(schedule, stages, WORLDS)


def in_worlds(schedule: str, stages: int, worlds: Sequence[World]) -> None:
    gpt = replace(TINY, layers=stages)
    turns = itertools.cycle((24, 1, 3))
    for overlap, grid in worlds:
        keys = {**grid, "pp": stages, "schedule": schedule, "overlap": overlap}
        assert_slots_equal_ops(gpt, plan_of(next(turns), **keys))


@pytest.mark.parametrize(
    ("chunks", "stages"),
    [(2, 3), *slow((3, 2), (2, 2), (3, 3))],
)
def test_chunks_in_turns_equal_their_ops(stages: int, chunks: int) -> None:
    """In some worlds; many random pipelines are in all of them."""
    gpt = replace(TINY, layers=stages * chunks)
    turns = itertools.cycle((1, 6, 2))
    for overlap, grid in WORLDS[stages % 3 :: 3]:
        keys = {**grid, "pp": stages, "vpp": chunks, "overlap": overlap}
        assert_slots_equal_ops(gpt, plan_of(next(turns) * stages, **keys))


@pytest.mark.parametrize("schedule", V_SHAPED)
@pytest.mark.parametrize("stages", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_chunks_in_a_v_equal_their_ops(schedule: str, stages: int) -> None:
    """Of two stages in every other world."""
    gpt, turns = replace(TINY, layers=2 * stages), itertools.cycle((0, 5, 1, 12))
    for overlap, grid in WORLDS[1::2] if stages == 2 else WORLDS:
        keys = {**grid, "pp": stages, "schedule": schedule, "vpp": 2, "overlap": overlap}
        more = next(turns)
        assert_slots_equal_ops(gpt, plan_of(2 * stages + more, **keys))
        if schedule == "zb-v":
            assert_slots_equal_ops(replace(gpt, tied=False), plan_of(1 + more, **keys))


def test_sums_of_gradients_take_from_the_compute_of_the_slots_that_follow() -> None:
    """Of chunks of one layer, whose sums begin as their last slots end."""
    plan = plan_of(4, pp=2, vpp=3, dp=4, overlap=("dp", "pp"))
    assert_slots_equal_ops(replace(TINY, layers=6), plan, 1e8, compute_share=0.3)
    with_share, without = (
        seconds(
            simulate_pipeline(
                replace(TINY, layers=6),
                plan,
                SmallCosts(),
                SmallFabric(bytes_per_s=1e8, devices_per_node=64, compute_share=share),
            )
        )
        for share in (0.3, 0.0)
    )
    assert with_share > 1.01 * without


def test_a_message_takes_as_long_as_on_the_slowest_link_between_two_stages() -> None:
    """Ranks 0 and 2 lie in one node, 1 and 3 in two; each node of a link adds a microsecond."""
    plan = plan_of(2, pp=2, dp=2)
    lines = StageOrders(TINY, plan, PLAIN)
    for node_of, microseconds in (((0, 1, 0, 2), 2), ((0, 1, 0, 1), 1), ((0, 1, 2, 3), 2)):
        fabric = SmallFabric(bytes_per_s=1e18, launch_s=1e-6, node_of=node_of)
        stages = PipelineRun(lines, SmallCosts(), lines.network(fabric, ()))
        assert stages.link_ticks(0) == (microseconds * TICKS_PER_S // 10**6,) * 2


def test_stages_of_one_kind_need_not_hold_as_much() -> None:
    """With ZB-H1 the third of four stages waits longer with weight gradients than the second."""
    how = {"tp": 2, "sp": True, "attention": "unfused", "recompute": "selective"}
    plan = plan_of(12, pp=4, schedule="zb-h1", ends_as_layers=True, overlap=("ors",), **how)
    gpt = replace(TINY, layers=6)
    second, third = (lower(gpt, plan, stage).peak.total_bytes for stage in (1, 2))
    assert third > second
    assert_slots_equal_ops(gpt, plan)


def test_a_stage_without_layers_equals_its_ops() -> None:
    for schedule, split in zip(SCHEDULES, itertools.cycle([(0, 2, 0), (1, 0, 1)]), strict=False):
        keys = {"pp": 3, "stage_layers": split, "schedule": schedule, "dp": 2, "zero": 1}
        keys |= {"offload": "none" if split[1] else "optimizer"}
        assert_slots_equal_ops(TINY, plan_of(4, **keys))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    ("sequence", "keys"),
    [
        (64, {"dp": 1}),
        (16, {"dp": 2, "zero": 1}),
        (4, {"dp": 2, "zero": 1, "overlap": ()}),
    ],
)
def test_what_the_host_holds_for_a_while_is_no_part_of_a_stages_peak(
    sequence: int, keys: dict[str, Any], schedule: str
) -> None:
    """With copies of gradients in the host's memory more is in use at the update than ever before;
    the peak is when most is in use on the device: in a slot, or while gradients are summed."""
    gpt = replace(TINY, hidden=64, ffn=256, vocab=1000, sequence=sequence)
    plan = plan_of(3, pp=2, schedule=schedule, offload="update", **keys)
    for stage in range(2):
        peak = lower(gpt, plan, stage).peak.total_bytes
        assert stage_bytes(gpt, plan, PLAIN_BEHAVIOUR, stage) == peak


@dataclass(frozen=True)
class CrowdedStage(SmallFabric):
    """The rings of some ranks are four times as slow: of single axes if `alone`, else where several
    are active at once."""

    crowded: tuple[int, ...] = ()
    alone: bool = False

    def rings(
        self, together: Sequence[Indices], pairs: Sequence[bool] = ()
    ) -> list[tuple[Sequence[Ring], Indices]]:
        found = super().rings(together)
        if self.alone != (len(together) == 1):
            return found
        result: list[tuple[Sequence[Ring], Indices]] = []
        for groups, (rings, index) in zip(together, found, strict=True):
            slow = np.isin(groups, self.crowded).all(axis=1)
            others = [replace(ring, sharing=4 * ring.sharing) for ring in rings]
            result.append(([*rings, *others], index + len(rings) * slow))
        return result


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("crowded", [1, 2])
def test_like_stages_with_unlike_rings_have_slots_of_their_own(crowded: int, alone: bool) -> None:
    """Those of single axes, or of several at once, while ops take as long alone."""
    gpt, overlap = replace(TINY, layers=8), () if alone else ("oar", "ors", "oag")
    plan = plan_of(4, pp=4, tp=2, y=2, z=2, overlap=overlap)
    ranks = tuple(np.flatnonzero(plan.grid.stages() == crowded).tolist())
    fabric = CrowdedStage(
        devices_per_node=64, axes_share=False, launch_s=0.0, crowded=ranks, alone=alone
    )
    programs = [lower(gpt, plan, stage) for stage in range(plan.pp)]
    spans = simulate_timeline(programs, SmallCosts(), fabric).spans
    step = simulate_pipeline(gpt, plan, SmallCosts(), fabric)
    assert seconds(step) == pytest.approx(max(span.end_s for span in spans), rel=1e-12, abs=0)


def some_cases(seed: int) -> Iterator[Case]:
    """Random pipelines of all options, without end."""
    chance = random.Random(seed)
    while True:
        row: Row = {name: chance.choice(values) for name, values in OPTIONS.items()}
        row["micro_batches"] = chance.choice((1, 2, 3, 4, 6, 12, 24))
        if row["pp"] > 1 and ranks_of(row) <= 64 and not is_refused(row) and is_legal(row):
            yield case(row)


@few_and_many(
    4,
    40,
    settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]),
    seed=st.integers(0, 2**32),
    bytes_per_s=st.sampled_from(BANDWIDTHS),
    share=st.sampled_from(SHARES),
)
def test_random_pipelines_equal_their_ops(seed: int, bytes_per_s: float, share: float) -> None:
    assert_slots_equal_ops(*next(some_cases(seed)), bytes_per_s, share)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bytes_per_s", BANDWIDTHS)
@pytest.mark.parametrize("share", SHARES)
def test_many_random_pipelines_equal_their_ops(bytes_per_s: float, share: float) -> None:
    for _, (gpt, plan) in zip(range(100), some_cases(int(bytes_per_s)), strict=False):
        assert_slots_equal_ops(gpt, plan, bytes_per_s, share)


@dataclass(frozen=True)
class LayersOnly:
    """Costs of the layers' matmuls alone, each a microsecond; all else is free."""

    def host_s(self, op: Op) -> float:
        return 0.0

    def seconds(self, op: Op) -> float:
        return 1e-6 if op.part.is_layer and op.kind == "matmul" else 0.0


# A layer has four matmuls forward, and four each for the gradients of inputs and of weights.
FORWARD, INPUT, WEIGHT = 4e-6, 4e-6, 4e-6


@dataclass(frozen=True)
class FreeFabric(SmallFabric):
    """Messages and collectives that take no time."""

    def seconds(self, transport: Transport, payload_bytes: int, ring: object) -> float:
        return 0.0


def step_of(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> StepResult:
    """A pipeline of equal chunks of a layer each, in which nothing but layers takes time."""
    keys = {"pp": stages, "schedule": schedule, "vpp": chunks}
    gpt = replace(TINY, layers=stages * chunks)
    return simulate_pipeline(gpt, plan_of(micro_batches, **keys), LayersOnly(), FreeFabric())


def bubble_s(schedule: str, stages: int, micro_batches: int) -> float:
    """What a step lasts longer than a stage works."""
    work = micro_batches * (FORWARD + INPUT + WEIGHT)
    return seconds(step_of(schedule, stages, micro_batches)) - work


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"),
    [
        *((2, 1, 1), (4, 8, 1), (8, 8, 1), (4, 64, 1), (2, 4, 2), (4, 8, 3), (4, 16, 2)),
        pytest.param(8, 64, 4, marks=pytest.mark.slow),
    ],
)
def test_the_bubble_of_equal_stages_is_that_of_theory(
    stages: int, micro_batches: int, chunks: int
) -> None:
    """(p - 1) / (m v + p - 1) of the step. Source: Narayanan et al. (SC21), section 2.2."""
    lasts = seconds(step_of("1f1b", stages, micro_batches, chunks))
    work = micro_batches * chunks * (FORWARD + INPUT + WEIGHT)
    share = (stages - 1) / (micro_batches * chunks + stages - 1)
    assert 1 - work / lasts == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize(
    ("stages", "micro_batches"),
    [(2, 4), (4, 4), (4, 16), pytest.param(8, 32, marks=pytest.mark.slow)],
)
def test_schedules_order_as_theory_says_in_time(stages: int, micro_batches: int) -> None:
    """GPipe as 1F1B; ZB-H1 (p - 1)(F + B - W); ZB-2p less, if not nothing.

    Source: Qi et al. (2401.10241), table 2.
    """
    bubbles = {schedule: bubble_s(schedule, stages, micro_batches) for schedule in SCHEDULES}
    behind = stages - 1
    assert bubbles["gpipe"] == pytest.approx(bubbles["1f1b"], rel=1e-9)
    assert bubbles["1f1b"] == pytest.approx(behind * (FORWARD + INPUT + WEIGHT), rel=1e-9)
    assert bubbles["zb-h1"] == pytest.approx(behind * (FORWARD + INPUT - WEIGHT), rel=1e-9)
    assert bubbles["zb-2p"] <= bubbles["zb-1p"] * (1 + 1e-9) <= bubbles["zb-h1"] * (1 + 2e-9)


def activations(schedule: str, stages: int, micro_batches: int) -> int:
    """The most activations that the first or the last stage holds."""
    gpt = replace(TINY, layers=stages)
    plan = plan_of(micro_batches, pp=stages, schedule=schedule)
    programs = [lower(gpt, plan, stage) for stage in (0, stages - 1)]
    return max(use.parts["activations"] for program in programs for use in program.memory)


def test_schedules_order_as_theory_says_in_memory() -> None:
    """1F1B holds p micro-batches, so do ZB-H1 and ZB-1p or a little more; ZB-2p up to 2 p; GPipe
    all of them."""
    held = {schedule: activations(schedule, 4, 16) for schedule in SCHEDULES}
    assert held["1f1b"] <= held["zb-h1"] <= held["zb-1p"] * 1.2
    assert held["zb-1p"] < 1.5 * held["1f1b"] < held["zb-2p"] < 2.5 * held["1f1b"] < held["gpipe"]
    assert activations("gpipe", 4, 32) > 1.9 * held["gpipe"]
    assert activations("1f1b", 4, 32) == held["1f1b"]


# Chunks of two layers, the first two dense: the last slot of the first stage sums its gradients on
# other streams than its experts' sums, which slots before it left behind.
SPARSE = find_model("tiny-llama-40k").changed(
    layers=8,
    dense_layers=4,
    experts=8,
    topk=2,
    expert_ffn=48,
    router="softmax-topk",
)
IN_FLIGHT = parse_plan("pp=2,vpp=2,ep=2,dp=4,overlap=dp,mbs=1", batch=16)


def test_sums_that_a_slot_left_in_flight_are_awaited_behind_another_slot() -> None:
    assert_slots_equal_ops(SPARSE, IN_FLIGHT, 1e6)
