"""Programs of the same sizes share the times of their ops, and some rows those of all."""

from __future__ import annotations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from simulator.search.bounds.batched_programs import (
    BatchedProgram,
    kinds,
    placed,
    sized,
    sizes_of,
)
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import part_times
from simulator.search.orders import ORDERS
from simulator.search.problem import SearchProblem
from simulator.search.space import Space, space_of
from tests.examples import few_and_many
from tests.simulator.search.drawn import DRAWN, MACHINES, mixtures, models, spaces
from tests.simulator.search.test_one_micro_batch import bounds_of
from topologies.session import Session
from workload.gpt import GPT
from workload.op import COMPUTE, FORWARD

GPT_12 = GPT.of(name="one", layers=12, hidden=512, heads=8, ffn=2048, sequence=512, vocab=1000)
DRAWN_SPACES = spaces(gpts=st.one_of(models(), mixtures()))


def parts_of(op_bounds: OpBounds, some: BatchedProgram) -> dict[object, list[int]]:
    return {
        (*key, *stream): list(ticks)
        for key, streams in part_times(op_bounds, some).items()
        for stream, ticks in streams.items()
    }


@few_and_many(
    5, 100, DRAWN, space=DRAWN_SPACES, name=st.sampled_from(sorted(MACHINES)), data=st.data()
)
def test_shared_times_are_those_of_each_program_alone(
    space: Space, name: str, data: st.DataObject
) -> None:
    """Programs in the order of their sizes, the times of one kept for the next."""
    every = kinds(space, np.arange(len(space)), together=True)
    every.sort(key=lambda rows: sizes_of(space, rows))
    begin = data.draw(st.integers(0, len(every) - 1))
    sharing, behaviour = bounds_of(space, name), space.problem.behaviour
    for rows in every[begin : begin + 8]:
        for some in sized(space, rows, together=True, behaviour=behaviour):
            alone = bounds_of(space, name)
            assert parts_of(sharing, sharing.sharing(some)) == parts_of(alone, some)


@few_and_many(
    5, 100, DRAWN, space=DRAWN_SPACES, name=st.sampled_from(sorted(MACHINES)), data=st.data()
)
def test_some_rows_of_a_program_have_the_times_that_they_have_in_it(
    space: Space, name: str, data: st.DataObject
) -> None:
    rows = data.draw(st.sampled_from(kinds(space, np.arange(len(space)), together=True)))
    op_bounds = bounds_of(space, name)
    some = next(sized(space, rows, together=True, behaviour=space.problem.behaviour))
    count = len(some.rows)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    assume(keep.any())
    few = parts_of(op_bounds, some.only(keep))
    assert few == {
        key: [ticks for ticks, own in zip(each, keep, strict=True) if own]
        for key, each in parts_of(op_bounds, some).items()
    }


def test_rows_whose_ranks_stand_otherwise_have_times_of_their_own() -> None:
    """Tensor parallelism over neighbours in a node, or over every fourth rank, across nodes."""
    problem = SearchProblem(GPT_12, 16, 64, {"pp": 1, "recompute": "none", "mbs": 1, "tp": 4})
    space = space_of(problem)
    op_bounds = bounds_of(space, "perlmutter")
    some = next(sized(space, np.arange(len(space)), together=True))
    lane = np.array([0, 0])
    orders = np.array([ORDERS.index(order) for order in ("tp-dp-pp", "dp-tp-pp")])
    known = part_times(op_bounds, placed(some, lane, orders))
    sent = known["layer", FORWARD, False]["blocking", COMPUTE]
    assert sent[0] < sent[1]


def test_a_program_keeps_its_times_for_the_next_of_equal_sizes() -> None:
    """Plans with ZeRO 0 and 1 have equal sizes, those of four devices others than those of two."""
    problem = SearchProblem(GPT_12, 8, 64, {"pp": 1, "recompute": "none", "mbs": 1, "sp": False})
    space = space_of(problem)
    every, zero, tp = np.arange(len(space)), space.columns["zero"], space.columns["tp"]
    op_bounds = bounds_of(space, "perlmutter")

    def shared(split: int, stage: int) -> BatchedProgram:
        rows = every[(zero == stage) & (tp == split) & (space.columns["dp"] == 8 // split)]
        (some,) = sized(space, rows)
        return op_bounds.sharing(some)

    with Session():
        first, alike, other = shared(2, 0), shared(2, 1), shared(4, 1)
    assert alike.timed is first.timed
    assert other.timed is not first.timed
