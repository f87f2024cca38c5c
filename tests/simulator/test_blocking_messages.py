"""Messages for which compute of both stages waits, as in DeepSpeed's pipeline engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.attribution.critical_path import simulated_step, ticks_by_cause
from simulator.attribution.pipeline_path import MESSAGES, pipeline_causes
from simulator.engine.stream_graph import PIPE
from simulator.noise.all_ranks import all_ranks
from simulator.noise.noise import Draw
from simulator.pipeline import simulate_pipeline
from simulator.pipeline.schedule_sim import SlotSchedule, SlotTimes, simulate_schedule
from simulator.pipeline.schedule_sim import schedule_of as of_orders
from simulator.pipeline.slot_path import SlotPath
from simulator.search import SearchProblem
from simulator.search.baselines import every_plan
from simulator.search.space import spaces_of
from simulator.stacks import Stack, load_stack
from tests.messages import names
from tests.simulator.test_pipeline import assert_slots_equal_ops, plan_of
from tests.simulator.worlds import TINY, SmallCosts, SmallFabric
from workload.errors import PlanCannotRunError
from workload.lowering import lower
from workload.op import COMPUTE
from workload.passes.stack import StackBehaviour
from workload.pipeline.message_order import AWAITED, DEEPSPEED
from workload.pipeline.schedule import BACKWARD, FORWARD, slots
from workload.plan import Plan

BLOCKING = StackBehaviour(messages=DEEPSPEED)
CUT = replace(BLOCKING, scatter_gather=(FORWARD, BACKWARD))


def schedule_of(stages: int, micro_batches: int, messages: str = DEEPSPEED) -> SlotSchedule:
    """Forward 10, backward 20, a message 1."""
    orders = [slots("1f1b", stage, stages, micro_batches) for stage in range(stages)]
    ticks = [[10 if slot.work == FORWARD else 20 for slot in order] for order in orders]
    return of_orders(orders, ticks, [(1, 1)] * stages, messages, micro_batches)


def shown(schedule: SlotSchedule, times: SlotTimes, stage: int) -> list[str]:
    rows = zip(schedule.orders[stage], times.start.tolist(), times.end.tolist(), strict=True)
    return [f"{slot.work[0]}{slot.micro_batch} {start}-{end}" for slot, start, end in rows]


def test_two_stages_exchange_a_gradient_and_an_activation_between_their_passes() -> None:
    """As the second stage ends a backward pass, both have the gradient for 1 and then the next
    activation for 1: the first one's second pass, over at 21, is sent from 42 on."""
    schedule = schedule_of(2, 3)
    times = simulate_schedule(schedule)
    first, second = times.stages
    assert shown(schedule, second, 1) == [
        *("f0 11-21", "b0 21-41", "f1 43-53", "b1 53-73", "f2 75-85", "b2 85-105")
    ]
    assert shown(schedule, first, 0) == [
        *("f0 0-10", "f1 11-21", "b0 43-63", "f2 63-73", "b1 75-95", "b2 106-126")
    ]
    stretches = list(SlotPath(schedule, times).back_from(0, 5))
    assert [(what, stage, length) for what, stage, _, length in stretches[:6]] == [
        *((PIPE, 0, 1), ("slot", 1, 20), ("slot", 1, 10), (PIPE, 1, 1), (PIPE, 1, 1)),
        ("slot", 1, 20),
    ]
    assert sum(length for *_, length in stretches) == 106


@pytest.mark.parametrize(("stages", "messages"), [(2, 2), (3, 4), (4, 4)])
def test_a_round_takes_a_pass_each_way_and_every_message_of_a_stage(
    stages: int, messages: int
) -> None:
    """Stages in the middle send two and receive two; beside compute half of them would be hidden,
    as a receive is posted long before."""
    for order, more in ((DEEPSPEED, messages), (AWAITED, messages // 2)):
        schedule = schedule_of(stages, 16, order)
        ends = simulate_schedule(schedule).stages[0].end.tolist()
        back = [
            end
            for slot, end in zip(schedule.orders[0], ends, strict=True)
            if slot.work == BACKWARD and 4 <= slot.micro_batch < 10
        ]
        assert {later - earlier for earlier, later in pairwise(back)} == {30 + more}


@settings(deadline=None, max_examples=60)
@given(stages=st.integers(2, 6), count=st.integers(1, 14), data=st.data())
def test_no_pass_comes_sooner_where_messages_block(
    stages: int, count: int, data: st.DataObject
) -> None:
    orders = [slots("1f1b", stage, stages, count) for stage in range(stages)]
    number = st.integers(0, 50)
    ticks = [[data.draw(number) for _ in order] for order in orders]
    links = [(data.draw(number), data.draw(number)) for _ in range(stages)]
    free, blocking = (
        simulate_schedule(of_orders(orders, ticks, links, messages, count)).stages
        for messages in (AWAITED, DEEPSPEED)
    )
    for early, late in zip(free, blocking, strict=True):
        assert (early.start <= late.start).all()


def test_messages_stand_among_the_passes_in_deepspeeds_order() -> None:
    """Stage 1 of 4, with five micro-batches: three forward passes ahead."""
    program = lower(replace(TINY, layers=4), plan_of(5, pp=4), 1, behaviour=BLOCKING)
    line = [op for op in program.ops if op.is_message]
    assert {op.stream for op in line} == {COMPUTE}
    words = [f"{op.kind[0]}{op.direction[0]}{op.micro_batch}" for op in line]
    assert words == [
        *("rf0", "sf0", "rf1", "sf1", "rf2"),  # a backward pass is next: the gradient first
        *("rb0", "sf2", "sb0", "rf3", "rb1", "sf3", "sb1", "rf4", "rb2", "sf4"),
        *("sb2", "rb3", "sb3", "rb4", "sb4"),
    ]
    assert not [op for op in program.ops if op.kind == "fence"]


@pytest.mark.parametrize(
    ("stages", "behaviour", "most"),
    [
        (3, BLOCKING, 12),
        *(
            pytest.param(stages, behaviour, 24, marks=pytest.mark.slow)
            for stages, behaviour in product((2, 3, 4), (CUT, BLOCKING))
        ),
    ],
)
def test_slots_and_blocking_messages_equal_their_ops(
    stages: int, behaviour: StackBehaviour, most: int
) -> None:
    """Of fewer micro-batches than stages too, where no stage comes to its steady state."""
    gpt = replace(TINY, layers=stages)
    worlds: tuple[tuple[tuple[str, ...], dict[str, int]], ...] = (
        *(((), {}), (("dp",), {"dp": 2}), ((), {"tp": 2})),
    )
    for count, bytes_per_s in ((1, 1e6), (3, 1e8), (most, 1e7)):
        for overlap, grid in worlds:
            plan = plan_of(count, **grid, pp=stages, overlap=overlap)
            assert_slots_equal_ops(gpt, plan, bytes_per_s, behaviour=behaviour)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("count", [2, 12])
def test_both_walks_of_the_path_fill_the_step_and_every_rank_agrees(
    stages: int, count: int
) -> None:
    gpt, costs = replace(TINY, layers=stages), SmallCosts(issue_s=1e-6)
    fabric = SmallFabric(bytes_per_s=1e7, devices_per_node=64, axes_share=False)
    plan = plan_of(count, dp=2, pp=stages, overlap=())
    step = sum(simulate_pipeline(gpt, plan, costs, fabric, behaviour=BLOCKING).parts_ticks.values())
    causes = pipeline_causes(gpt, plan, costs, fabric, behaviour=BLOCKING)
    assert sum(causes.values()) == step
    programs = [lower(gpt, plan, stage, behaviour=BLOCKING) for stage in range(stages)]
    path = simulated_step(programs, costs, fabric).path()
    assert ticks_by_cause(path) == causes
    assert causes[MESSAGES] > 0
    ranks = all_ranks(gpt, plan, costs, fabric, behaviour=BLOCKING)
    played = ranks.play(Draw(0, (0,)))
    assert played.ticks.tolist() == [step]
    assert sum(float(each[0]) for each in played.parts.values()) == pytest.approx(step, rel=1e-12)
    slow = ranks.play(Draw(0, (0,), np.full((1, 2 * stages), 1.5))).ticks[0]
    assert slow > step


def stack_of(**keys: object) -> Stack:
    return replace(load_stack("other"), name="mine", own_kernels=keys)


@pytest.mark.parametrize(
    "name", ["megatron-deepspeed", "megatron-deepspeed-bloom", "gpt-neox-2022"]
)
def test_stacks_on_deepspeeds_pipeline_engine_block(name: str) -> None:
    assert load_stack(name).blocks
    assert not load_stack("megatron-lm-2021").blocks


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"vpp": 2}, ("schedule=1f1b", "vpp=1")),
        ({"schedule": "gpipe"}, ("schedule=1f1b", "vpp=1")),
        ({"overlap": ("pp",)}, ("pp", "overlap")),
    ],
)
def test_plans_that_need_messages_beside_compute_are_refused(
    keys: dict[str, object], named: tuple[str, ...]
) -> None:
    plan = Plan.of(pp=2, batch=8, mbs=1, **({"overlap": ()} | keys))
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        stack_of(messages=DEEPSPEED).check(plan)
    stack_of().check(plan)
    stack_of(messages=DEEPSPEED).check(replace(plan, pp=1, vpp=1))


def test_a_users_file_that_says_so_makes_messages_block(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'base = "other"\ntitle = "t"\nsource = "s"\n[kernels]\nmessages = "deepspeed"\n'
    )
    plan = Plan.of(pp=2, batch=8, mbs=1, overlap=("pp",))
    with pytest.raises(PlanCannotRunError, check=names("pp", "overlap")):
        load_stack(str(file)).check(plan)


def test_a_search_leaves_out_what_blocking_messages_cannot_run() -> None:
    for stack, interleaves in ((load_stack("megatron-deepspeed"), {1}), (stack_of(), {1, 2})):
        problem = SearchProblem(replace(TINY, layers=4), 4, 8, {"mbs": 1, "pp": 2}, stack=stack)
        plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
        assert {plan.vpp for plan in plans if plan.pipeline.schedule == "1f1b"} == interleaves
