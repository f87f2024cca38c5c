"""Messages as Megatron posts and awaits them, under 1F1B with and without virtual stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.attribution.critical_path import simulated_step, ticks_by_cause
from simulator.attribution.pipeline_path import MESSAGES, pipeline_causes
from simulator.noise.all_ranks import all_ranks
from simulator.noise.noise import Draw
from simulator.pipeline import simulate_pipeline
from simulator.pipeline.schedule_messages import NO_MESSAGE
from simulator.pipeline.schedule_sim import SlotSchedule, SlotTimes, simulate_schedule
from simulator.pipeline.schedule_sim import schedule_of as of_orders
from simulator.pipeline.slot_path import SlotPath
from tests.simulator.test_pipeline import assert_slots_equal_ops, plan_of
from tests.simulator.worlds import TINY, SmallCosts, SmallFabric
from workload.lowering import lower
from workload.passes.stack import StackBehaviour
from workload.pipeline.message_order import AHEAD, AWAITED, INTERLEAVED, MEGATRON, OVERLAPPED
from workload.pipeline.schedule import BACKWARD, FORWARD, slots
from workload.plan import Plan
from workload.stages import order_of_messages

BEHAVIOUR = StackBehaviour(messages=MEGATRON)


def schedule_of(stages: int, micro_batches: int, messages: str, chunks: int = 1) -> SlotSchedule:
    """Forward 10, backward 20, a message 1."""
    orders = [slots("1f1b", stage, stages, micro_batches, chunks) for stage in range(stages)]
    ticks = [[10 if slot.work == FORWARD else 20 for slot in order] for order in orders]
    return of_orders(orders, ticks, [(1, 1)] * stages, messages, micro_batches)


def shown(schedule: SlotSchedule, times: SlotTimes, stage: int) -> list[str]:
    rows = zip(schedule.orders[stage], times.start.tolist(), times.end.tolist(), strict=True)
    return [f"{slot.work[0]}{slot.micro_batch} {start}-{end}" for slot, start, end in rows]


def test_the_order_follows_from_the_plan() -> None:
    plan = Plan.of(pp=4, batch=8, mbs=1, overlap=("pp",))
    chunks = replace(plan, vpp=2)
    paired = chunks.changed(dp=2, batch=16, ep=2, overlap=("a2a", "pp"))
    for each, order in (
        (plan, MEGATRON),
        (plan.changed(overlap=()), MEGATRON),
        (chunks, OVERLAPPED),
        (chunks.changed(overlap=()), INTERLEAVED),
        (paired, INTERLEAVED),
        (plan.changed(schedule="zb-h1"), AHEAD),
        (plan.changed(schedule="gpipe", overlap=()), AWAITED),
    ):
        assert order_of_messages(MEGATRON, each) == order
    assert order_of_messages("", plan) == AHEAD


def test_a_gradient_and_an_activation_cross_between_two_passes() -> None:
    """At 41 the second stage sends the gradient of 0, and the first one the activation of 1, which
    it has had since 21: both have arrived at 42, where DeepSpeed's take until 43."""
    schedule = schedule_of(2, 3, MEGATRON)
    times = simulate_schedule(schedule)
    first, second = times.stages
    assert shown(schedule, second, 1) == [
        *("f0 11-21", "b0 21-41", "f1 42-52", "b1 52-72", "f2 73-83", "b2 83-103")
    ]
    assert shown(schedule, first, 0) == [
        *("f0 0-10", "f1 11-21", "b0 42-62", "f2 62-72", "b1 73-93", "b2 104-124")
    ]
    assert sum(length for *_, length in SlotPath(schedule, times).back_from(0, 5)) == 104


def test_a_round_takes_a_pass_each_way_and_a_message_for_each() -> None:
    """Of stages in the middle: half of DeepSpeed's, and as many as with receives posted ahead."""
    for stages in (3, 4):
        for order in (MEGATRON, AWAITED):
            schedule = schedule_of(stages, 16, order)
            ends = simulate_schedule(schedule).stages[0].end.tolist()
            back = [
                end
                for slot, end in zip(schedule.orders[0], ends, strict=True)
                if slot.work == BACKWARD and 4 <= slot.micro_batch < 10
            ]
            assert {later - earlier for earlier, later in pairwise(back)} == {30 + 2}


def test_overlapped_messages_wait_in_the_warm_up_and_at_the_end() -> None:
    """Two stages of two chunks, four micro-batches: the first stage's four passes of warm-up start
    11 apart, each behind the message between; the second one's pairs follow without a gap, as the
    activations and gradients of each pair move beside the other pass."""
    schedule = schedule_of(2, 4, OVERLAPPED, 2)
    first, second = (own.start.tolist() for own in simulate_schedule(schedule).stages)
    assert first[:4] == [0, 11, 22, 33]
    assert second[:3] == [11, 22, 33]
    pairs = slice(second.index(33), 10)
    assert [b - a for a, b in pairwise(second[pairs])] == [10, 20, 10, 20, 10, 20, 10]
    free = simulate_schedule(schedule_of(2, 4, AHEAD, 2)).stages
    assert free[0].start[:4].tolist() == [0, 10, 22, 32]


def test_without_the_overlap_four_messages_move_at_once_behind_each_pair() -> None:
    """And the first pair of a stage starts when the first gradient is there, not sooner."""
    schedule = schedule_of(2, 4, INTERLEAVED, 2)
    first, second = (own.start.tolist() for own in simulate_schedule(schedule).stages)
    ahead = 4  # the first stage's passes of warm-up; the second one has 2, and sends b0 first at 64
    assert second[2:5] == [33, 43, 64]
    assert first[ahead] == 64
    assert first[ahead : ahead + 3] == [64, 74, 95]


@settings(deadline=None, max_examples=40)
@given(stages=st.integers(2, 5), rounds=st.integers(1, 4), chunks=st.integers(1, 3), data=st.data())
def test_no_pass_comes_sooner_than_what_it_needs(
    stages: int, rounds: int, chunks: int, data: st.DataObject
) -> None:
    """And every order comes to its end: no stage waits for a message that never comes."""
    count = stages * rounds
    orders = [slots("1f1b", stage, stages, count, chunks) for stage in range(stages)]
    number = st.integers(0, 50)
    ticks = [[data.draw(number) for _ in order] for order in orders]
    links = [(data.draw(number), data.draw(number)) for _ in range(stages)]
    for order in (MEGATRON,) if chunks == 1 else (OVERLAPPED, INTERLEAVED):
        schedule = of_orders(orders, ticks, links, order, count)
        times = simulate_schedule(schedule).stages
        left = {
            message: end
            for row, own in zip(schedule.shared.departures, times, strict=True)
            for message, end in zip(row.tolist(), own.end.tolist(), strict=True)
        }
        for row, own in zip(schedule.shared.arrivals, times, strict=True):
            assert all(end <= start for end, start in zip(own.end, own.start[1:], strict=False))
            for message, start in zip(row.tolist(), own.start.tolist(), strict=True):
                if message != NO_MESSAGE:
                    assert start >= left[message] + schedule.ticks_of(message)


@pytest.mark.parametrize(
    ("chunks", "stages"),
    [
        pytest.param(*pair, marks=() if pair in ((1, 2), (2, 2)) else pytest.mark.slow)
        for pair in product((1, 2, 3), (2, 3, 4))
    ],
)
def test_slots_equal_their_ops(stages: int, chunks: int) -> None:
    """Of as many micro-batches as stages too, where all forward passes are warm-up."""
    gpt = replace(TINY, layers=stages * chunks)
    for turns, overlap, grid, bytes_per_s in (
        (1, ("pp",), {}, 1e6),
        (2, (), {"tp": 2}, 1e8),
        (8, ("pp",), {}, 1e7),
        (9, (), {}, 1e7),
        (8, ("dp", "pp"), {"dp": 2}, 1e8),
    ):
        keys = {**grid, "pp": stages, "vpp": chunks, "overlap": overlap}
        assert_slots_equal_ops(
            gpt, plan_of(turns * stages, **keys), bytes_per_s, behaviour=BEHAVIOUR
        )


@pytest.mark.parametrize(("chunks", "overlap"), [(1, ()), (2, ()), (2, ("pp",))])
def test_both_walks_of_the_path_fill_the_step_and_every_rank_agrees(
    chunks: int, overlap: tuple[str, ...]
) -> None:
    stages = 2
    gpt, costs = replace(TINY, layers=stages * chunks), SmallCosts(issue_s=1e-6)
    fabric = SmallFabric(bytes_per_s=1e7, devices_per_node=64, axes_share=False)
    plan = plan_of(12, dp=2, pp=stages, vpp=chunks, overlap=overlap)
    step = sum(
        simulate_pipeline(gpt, plan, costs, fabric, behaviour=BEHAVIOUR).parts_ticks.values()
    )
    causes = pipeline_causes(gpt, plan, costs, fabric, behaviour=BEHAVIOUR)
    assert sum(causes.values()) == step
    programs = [lower(gpt, plan, stage, behaviour=BEHAVIOUR) for stage in range(stages)]
    path = simulated_step(programs, costs, fabric).path()
    assert ticks_by_cause(path) == causes
    assert causes[MESSAGES] > 0
    ranks = all_ranks(gpt, plan, costs, fabric, behaviour=BEHAVIOUR)
    played = ranks.play(Draw(0, (0,)))
    assert played.ticks.tolist() == [step]
    assert sum(float(each[0]) for each in played.parts.values()) == pytest.approx(step, rel=1e-12)
    assert ranks.play(Draw(0, (0,), np.full((1, 2 * stages), 1.5))).ticks[0] > step
