"""Chunks in turns of micro-batches that stages do not divide, as Megatron-LM runs them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from simulator.pipeline import simulate_pipeline
from tests.examples import one_in
from tests.messages import names
from tests.simulator.test_pipeline import assert_slots_equal_ops, plan_of
from tests.simulator.worlds import TINY, SmallCosts, SmallFabric
from tests.workload.test_schedule import left_over
from workload.errors import PlanCannotRunError
from workload.lowering import lower
from workload.passes.stack import StackBehaviour
from workload.pipeline.message_order import MEGATRON
from workload.pipeline.schedule import BACKWARD, FORWARD, Slot, slots
from workload.pipeline.warm_up import in_turn, warm_up
from workload.stages import order_of_messages

BEHAVIOUR = StackBehaviour(messages=MEGATRON)
OVERLAPS: tuple[tuple[str, ...], ...] = ((), ("pp",))


def table(count: int, chunks: int, group: int) -> list[tuple[int, int]]:
    """Micro-batches and chunks in Megatron-LM's order (schedules.py, get_schedule_table)."""
    firsts = range(0, count, group)
    return [
        (m, chunk)
        for first in firsts
        for chunk in range(chunks)
        for m in range(first, min(first + group, count))
    ]


@pytest.mark.parametrize(
    ("stages", "count", "group"),
    [(4, 5, 5), (4, 10, 5), (4, 9, 5), (4, 11, 6), (2, 7, 4), (4, 8, 4)],
)
def test_a_chunk_gets_the_fewest_micro_batches_that_leave_no_short_turn(
    stages: int, count: int, group: int
) -> None:
    chunks = 3
    assert in_turn(stages, count) == group
    for stage in range(stages):
        order = slots("1f1b", stage, stages, count, chunks)
        forward = [(s.micro_batch, s.chunk) for s in order if s.work == FORWARD]
        backward = [(s.micro_batch, chunks - 1 - s.chunk) for s in order if s.work == BACKWARD]
        assert forward == backward == table(count, chunks, group)
        ahead = min(2 * (stages - 1 - stage) + (chunks - 1) * group, count * chunks)
        assert warm_up(stage, stages, count, chunks) == ahead
        first = next(at for at, slot in enumerate(order) if slot.work == BACKWARD)
        assert first == min(ahead + 1, count * chunks)


@pytest.mark.parametrize(
    ("stages", "chunks", "overlap"),
    one_in(7, product((2, 3, 4), (2, 3), OVERLAPS)),
)
def test_no_stage_waits_for_a_message_that_never_comes(
    stages: int, chunks: int, overlap: tuple[str, ...]
) -> None:
    gpt = replace(TINY, layers=stages * chunks)
    for count in range(stages, 4 * stages):
        plan = plan_of(count, pp=stages, vpp=chunks, overlap=overlap)
        programs = [lower(gpt, plan, stage, behaviour=BEHAVIOUR) for stage in range(stages)]
        assert left_over(programs) == []


OTHERS = [
    pytest.param(count, overlap, marks=pytest.mark.slow)
    for count, overlap in ((5, ("pp",)), (7, ()), (9, ()), (9, ("pp",)))
]


@pytest.mark.parametrize(("count", "overlap"), [(5, ()), (7, ("pp",)), *OTHERS])
def test_slots_equal_their_ops(count: int, overlap: tuple[str, ...]) -> None:
    gpt = replace(TINY, layers=8)
    plan = plan_of(count, pp=4, vpp=2, overlap=overlap)
    assert_slots_equal_ops(gpt, plan, 1e7, behaviour=BEHAVIOUR)


def test_many_uneven_turns_equal_their_ops() -> None:
    plan = plan_of(45, pp=2, vpp=2, overlap=("pp",))
    assert_slots_equal_ops(replace(TINY, layers=4), plan, 1e7, behaviour=BEHAVIOUR)


def test_another_micro_batch_never_makes_a_step_shorter() -> None:
    gpt, fabric = replace(TINY, layers=8), SmallFabric(bytes_per_s=1e9, axes_share=False)
    steps = [
        sum(
            simulate_pipeline(
                gpt,
                plan_of(count, pp=4, vpp=2, overlap=("pp",)),
                SmallCosts(issue_s=1e-6),
                fabric,
                behaviour=BEHAVIOUR,
            ).parts_ticks.values()
        )
        for count in range(4, 13)
    ]
    assert steps == sorted(steps)


def test_other_orders_of_messages_want_even_turns() -> None:
    plan = plan_of(5, pp=4, vpp=2)
    assert order_of_messages(MEGATRON, plan)
    with pytest.raises(PlanCannotRunError, check=names("pp=4", "5")):
        order_of_messages("", plan)
    with pytest.raises(PlanCannotRunError, check=names("pp=4")):
        plan_of(3, pp=4, vpp=2)
    assert Slot(FORWARD, 0, 0) == slots("1f1b", 0, 4, 5, 2)[0]
