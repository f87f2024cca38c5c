"""The core's parts that run once for every op, against their twins in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs.kernel_launch import launch_bound
from simulator.engine import core
from simulator.engine.columns import Sorts, changes_of, columns_of, flow_of, make_columns
from simulator.engine.interference import interference_of
from simulator.engine.simulate import as_issued
from simulator.engine.stream_graph import StreamGraph, graph_among, graph_of
from simulator.engine.whole_program import lowered_again, whole_program
from tests.simulator.drawn_steps import drawn_steps
from tests.simulator.worlds import by_hand, compute
from workload.lowering import lower
from workload.op import COMPUTE, NONE, Op
from workload.program import Program

needs_compiled = pytest.mark.skipif(not core.is_built(), reason="built without a C compiler")
STREAMS = (COMPUTE, "tp", "z", "dp", "send.forward")
NAMES = tuple("abcdef")


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
    return replace(op, block=replace(op.block, micro_batch=m, phase="backward" if late else ""))


def outline_of(ops: list[Op]) -> StreamGraph:
    return graph_of(by_hand("tp=1", *ops).outline)


@needs_compiled
@settings(deadline=None)
@given(drawn_ops())
def test_waits_and_lives_of_any_ops_are_those_of_the_rules(ops: list[Op]) -> None:
    columns = make_columns(ops, dict.fromkeys(NAMES))
    found = columns.flow
    expected = flow_of(ops, columns.reads, columns.writes, columns.buffers)
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
            changes_of(outline, program.nbytes), outline.changes(program.nbytes), strict=True
        )
        assert all(np.array_equal(found, expected) for found, expected in pairs)


@needs_compiled
def test_some_ops_of_a_program_wait_among_themselves() -> None:
    for program in drawn_programs(seed=2, count=6):
        places = tuple(range(3, len(program.ops), 2))
        graph = graph_among(program.outline, places)
        ops = [program.ops[at] for at in places]
        own = make_columns(ops, program.buffers)
        expected = flow_of(ops, own.reads, own.writes, own.buffers)
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
                {key: value for key, value in each.attributes.items() if key != "parameters"}
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
        graph = whole_program(lowered_again, step.gpt, step.plan).graph
        count = len(graph.base)
        alone = chance.integers(0, 50, count) * chance.integers(0, 2, count)
        each = chance.integers(0, 60, count)
        expected = launch_bound(graph.ops, alone.tolist(), each.tolist(), graph.shift.tolist())
        assert as_issued(graph, alone, each).tolist() == expected


def test_buffers_that_nobody_writes_or_needs_are_said_so() -> None:
    columns = make_columns([compute("one", "a", "b")], {"a": 0, "b": 0, "c": 0})
    assert columns.flow.born.tolist() == [NONE, 0, NONE]
    assert columns.flow.gone.tolist() == [0, 0, NONE]
