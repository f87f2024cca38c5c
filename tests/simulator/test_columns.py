"""The core's parts that run once for every op, against their twins in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs.kernel_launch import launch_bound
from simulator.engine import core
from simulator.engine.columns import NAMES as OF_OPERANDS
from simulator.engine.columns import Sorts, columns_of, flow_of, make_columns
from simulator.engine.engines import MOST_TICKS
from simulator.engine.interference import interference_of
from simulator.engine.simulate import as_issued
from simulator.engine.stream_graph import StreamGraph, graph_among, graph_of
from simulator.engine.whole_program import whole_program
from simulator.pipeline.schedule_sim import (
    ScheduleTimes,
    SlotSchedule,
    _ScheduleRun,
    schedule_of,
    simulate_schedule,
)
from tests.simulator.drawn_steps import drawn_steps
from tests.simulator.worlds import by_hand, compute
from workload.errors import PlanCannotRunError
from workload.lowering import lower
from workload.op import COMPUTE, NONE, STEP, Block, Buffer, Op
from workload.pipeline.message_order import (
    AHEAD,
    AWAITED,
    DEEPSPEED,
    INTERLEAVED,
    MEGATRON,
    OVERLAPPED,
)
from workload.pipeline.schedule import OPPOSED, slots
from workload.program import Program

needs_compiled = pytest.mark.skipif(not core.is_built(), reason="built without a C compiler")
STREAMS = (COMPUTE, "tp", "z", "dp", "send.forward")
NAMES = tuple("abcdef")
# Schedules, the chunks of a stage, and the orders in which messages go there.
PIPELINES = (
    ("1f1b", 1, (AHEAD, AWAITED, DEEPSPEED, MEGATRON)),
    *(("1f1b", chunks, (AHEAD, AWAITED, INTERLEAVED, OVERLAPPED)) for chunks in (2, 3)),
    *((schedule, 1, (AHEAD, AWAITED)) for schedule in ("gpipe", "zb-h1")),
    *((schedule, 2, (AHEAD, AWAITED)) for schedule in ("zb-v", "dualpipe-v")),
)


def drawn_programs(seed: int, count: int) -> Iterator[Program]:
    """Programs of plans of all options, one stage of each."""
    for step in islice(drawn_steps(seed), count):
        yield lower(step.gpt, step.plan, step.plan.pp - 1)


def drawn_ops() -> st.SearchStrategy[list[Op]]:
    """Any ops on a few buffers and streams, collectives on some of them."""
    names = st.lists(st.sampled_from(NAMES), max_size=3, unique=True)
    each = st.tuples(
        st.sampled_from(STREAMS), names, names, st.booleans(), st.integers(0, 2), st.booleans()
    )
    return st.lists(each, max_size=25).map(
        lambda rows: [_op(number, *row) for number, row in enumerate(rows)]
    )


def _op(
    number: int,
    stream: str,
    reads: list[str],
    writes: list[str],
    collects: bool,
    m: int,
    late: bool,
) -> Op:
    op = compute(f"m{m}.l{number % 2}.op{number}", " ".join(reads), " ".join(writes), stream)
    if collects and stream != COMPUTE:
        op = replace(op, kind="all_reduce", axes=(stream,), nbytes=number)
    return replace(op, block=op.block._replace(micro_batch=m, phase="backward" if late else ""))


def buffers_of(names: Iterable[str]) -> dict[str, Buffer]:
    return {name: Buffer(name, (1,), "bf16", "workspace") for name in names}


def outline_of(ops: list[Op]) -> StreamGraph:
    return graph_of(by_hand("tp=1", *ops).outline)


@needs_compiled
@settings(deadline=None)
@given(drawn_ops())
def test_waits_and_lives_of_any_ops_are_those_of_the_rules(ops: list[Op]) -> None:
    columns = make_columns(ops, buffers_of(NAMES))
    found = columns.flow
    expected = flow_of(ops, columns.reads, columns.writes, len(columns.buffers))
    assert found.waits.lists == expected.waits.lists
    assert (found.born == expected.born).all()
    assert (found.gone == expected.gone).all()


@needs_compiled
@settings(deadline=None)
@given(drawn_ops(), st.lists(st.sampled_from(STREAMS[1:]), max_size=2, unique=True))
def test_windows_of_any_ops_are_those_of_the_rules(ops: list[Op], carried: list[str]) -> None:
    graph = outline_of(ops)
    found = graph.interference(tuple(carried))
    expected = interference_of(graph.ops, graph.waits, carried)
    assert list(found.computes) == list(expected.computes)
    assert found.windows == expected.windows
    assert found.unmatched == expected.unmatched


@needs_compiled
def test_programs_of_all_options_have_the_waits_and_bytes_of_the_rules() -> None:
    for program in drawn_programs(seed=1, count=12):
        outline = program.outline
        assert columns_of(outline).flow.waits.lists == program.waits
        pairs = zip(
            columns_of(outline).lives.changes(program.nbytes),
            outline.changes(program.nbytes),
            strict=True,
        )
        assert all(np.array_equal(found, expected) for found, expected in pairs)


@needs_compiled
def test_some_ops_of_a_program_wait_among_themselves() -> None:
    for program in drawn_programs(seed=2, count=6):
        places = np.arange(3, len(program.ops), 2)
        graph = graph_among(columns_of(program.outline), places)
        ops = [program.ops[at] for at in places.tolist()]
        own = make_columns(ops, program.buffers)
        expected = flow_of(ops, own.reads, own.writes, len(own.buffers))
        assert graph.waits == expected.waits.lists


def test_ops_of_a_sort_are_equal_in_all_that_their_time_depends_on() -> None:
    for program in drawn_programs(seed=3, count=12):
        sorts = Sorts.of(program.ops)
        for op, number in zip(program.ops, sorts.of_op.tolist(), strict=True):
            one = sorts.ops[number]
            names = {"name", "reads", "writes", "block", "micro_batch", "part", "attributes"}
            for field in set(Op.__slots__) - names:  # type: ignore[attr-defined]
                assert getattr(op, field) == getattr(one, field)
            assert (op.block.phase, op.part.kind) == (one.block.phase, one.part.kind)
            rest = [
                {key: value for key, value in each.attributes.items() if key not in OF_OPERANDS}
                for each in (op, one)
            ]
            assert rest[0] == rest[1]
        assert len(set(map(repr, sorts.keys))) == len(sorts.ops)


def test_equal_ops_of_other_dtypes_labels_or_hosts_are_of_other_sorts() -> None:
    op = compute("m0.l0.one")
    others = [
        replace(op, dtype="fp8"),
        replace(op, label="two"),
        replace(op, launches=2),
        replace(op, attributes={"m": 1}),
    ]
    assert Sorts.of([op, *others, op]).of_op.tolist() == [0, 1, 2, 3, 4, 0]
    named = [replace(op, attributes={"parameters": (name,)}) for name in ("w", "v")]
    assert Sorts.of(named).of_op.tolist() == [0, 0]


@needs_compiled
@pytest.mark.parametrize("seed", range(3))
def test_the_host_holds_up_ops_as_the_rules_say(seed: int) -> None:
    chance = np.random.default_rng(seed)
    for step in islice(drawn_steps(10 + seed), 5):
        if step.plan.pp > 1:
            continue
        graph = whole_program(step.gpt, step.plan).graph
        count = len(graph.places)
        alone = chance.integers(0, 50, count) * chance.integers(0, 2, count)
        each = chance.integers(0, 60, count)
        blocks = graph.issued_blocks.tolist()
        expected = launch_bound(graph.ops, alone.tolist(), each.tolist(), blocks)
        assert as_issued(graph, alone, each).tolist() == expected


def test_buffers_that_nobody_writes_or_needs_are_said_so() -> None:
    columns = make_columns([compute("one", "a", "b")], buffers_of("abc"))
    assert columns.flow.born.tolist() == [NONE, 0, NONE]
    assert columns.flow.gone.tolist() == [0, 0, NONE]


@st.composite
def drawn_schedules(draw: st.DrawFn) -> SlotSchedule:
    """Schedules of which each slot and each link takes any time, of as many micro-batches as they
    run: chunks in turns want multiples of the stages, but in the orders of Megatron, and DualPipeV
    two for each stage."""
    (name, chunks, orders), stages = draw(st.sampled_from(PIPELINES)), draw(st.integers(2, 5))
    how, count = draw(st.sampled_from(orders)), draw(st.integers(1, 12))
    if chunks > 1 and name not in OPPOSED:
        count = stages + count if how in (INTERLEAVED, OVERLAPPED) else stages * (1 + count % 3)
    count += 2 * stages if name == "dualpipe-v" else 0
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    most = draw(st.sampled_from((1, 50, 2**40)))
    every = [slots(name, stage, stages, count, chunks) for stage in range(stages)]
    ticks = [chance.integers(0, most, len(order), endpoint=True).tolist() for order in every]
    links = [tuple(row) for row in chance.integers(0, most, (stages, 2), endpoint=True).tolist()]
    return schedule_of(every, ticks, links, how, count, in_v=name in OPPOSED)


def twin(schedule: SlotSchedule) -> ScheduleTimes:
    return _ScheduleRun(schedule).run()


@needs_compiled
@settings(deadline=None)
@given(drawn_schedules())
def test_slots_and_messages_of_any_schedule_are_over_as_in_python(schedule: SlotSchedule) -> None:
    found, expected = simulate_schedule(schedule), twin(schedule)
    for own, other in zip(found.stages, expected.stages, strict=True):
        assert own.start.tolist() == other.start.tolist()
        assert own.end.tolist() == other.end.tolist()
        assert own.over == other.over
    assert found.over.tolist() == expected.over.tolist()


@pytest.mark.parametrize("simulate", [pytest.param(simulate_schedule, marks=needs_compiled), twin])
@pytest.mark.parametrize("long", ["slot", "message"])
def test_a_schedule_that_63_bits_do_not_hold_is_refused(
    long: str, simulate: Callable[[SlotSchedule], ScheduleTimes]
) -> None:
    """Two stages, a micro-batch: four slots and two messages, one behind the other, of a tick each
    but for a long one."""

    def lasting(total: int) -> SlotSchedule:
        slot, message = (total - 5 if long == each else 1 for each in ("slot", "message"))
        orders = [slots("1f1b", stage, 2, 1) for stage in range(2)]
        return schedule_of(orders, [[1, 1], [slot, 1]], [(message, 1), (0, 0)], AHEAD, 1)

    assert simulate(lasting(MOST_TICKS)).stages[0].over == MOST_TICKS
    for total in (MOST_TICKS + 1, MOST_TICKS + 5):
        with pytest.raises(PlanCannotRunError, match="106 days"):
            simulate(lasting(total))


@pytest.mark.parametrize(
    "changes",
    [{"nbytes": 2}, {"flops": 1}, {"stream": "s"}, {"dtype": "fp32"}, {"attributes": {"m": 1}}],
)
def test_ops_that_may_differ_in_time_are_of_two_sorts(changes: dict[str, Any]) -> None:
    one = replace(compute("m0.work", writes="q"), nbytes=1)
    sorts = Sorts.of([one, replace(one, name="m1.work", micro_batch=1), replace(one, **changes)])
    assert sorts.of_op.tolist() == [0, 0, 1]
    assert len(set(sorts.keys)) == 2


def test_what_closes_the_step_is_of_another_sort_than_what_does_not() -> None:
    """Its FLOPs and its time are told apart from the model's."""
    one = compute("work", writes="q")
    here, there = replace(one, block=STEP), replace(one, block=Block(0, STEP.part, ""))
    sorts = Sorts.of([here, there])
    assert sorts.of_op.tolist() == [0, 1]
    assert len(set(sorts.keys)) == 2
