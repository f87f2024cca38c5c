"""Micro-batches between the first and the last: bounds take their slots from those of the last."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.search.bounds.batched_programs import sized, within_parts
from simulator.search.bounds.layer_kinds import LAYER, base_of, has_kinds
from simulator.search.bounds.layouts import ModelEnds, plain_layers
from simulator.search.bounds.slot_programs import MIDDLE, LoweredSlots, SlotProgram
from simulator.search.bounds.stream_bound import INSIDE, BusiestStream, Entries
from simulator.search.orders import overlaps
from simulator.search.space import Space
from tests.examples import few_and_many
from tests.simulator.search.drawn import DRAWN, mixtures, models, spaces
from workload.grid import SHARDS
from workload.lowering import lower
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, COMPUTE, STEP, Op
from workload.passes.stack import PLAIN_BEHAVIOUR
from workload.plan import Plan

SUMS = (BUCKET_SCATTER, BUCKET_REDUCE)


def ops_of_second(space: Space, row: int, overlap: tuple[str, ...], count: int) -> dict[Any, Op]:
    """The ops of the second of so many micro-batches, by what tells them apart."""
    fields = space.shape(row) | {"pp": 1} | space.problem.others
    each = fields["mbs"] * prod(fields[axis] for axis in SHARDS["sequences"])
    plan = Plan.of(**fields, overlap=overlap, batch=count * each)
    program = lower(base_of(space.problem.gpt), plan, behaviour=within_parts(PLAIN_BEHAVIOUR))
    return {op.identity: op for op in program.ops if op.block != STEP and op.micro_batch == 1}


@few_and_many(10, 40, DRAWN, space=spaces(gpts=st.one_of(models(), mixtures())), data=st.data())
def test_one_in_the_middle_has_the_ops_of_the_last_but_sums_of_gradients(
    space: Space, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(space) - 1))
    overlap = data.draw(st.sampled_from(overlaps(space.problem, space.shape(row))))
    last, middle = (ops_of_second(space, row, overlap, count) for count in (2, 3))
    assert middle.keys() == {key for key, op in last.items() if op.purpose not in SUMS}
    for key, op in middle.items():
        assert (op.kind, op.stream, op.axes, op.dtype) == (
            last[key].kind,
            last[key].stream,
            last[key].axes,
            last[key].dtype,
        )
        assert (op.nbytes, op.flops, op.block) == (
            last[key].nbytes,
            last[key].flops,
            last[key].block,
        )


@few_and_many(5, 20, DRAWN, space=spaces(gpts=models()), data=st.data())
def test_slots_in_the_middle_sum_no_gradients_over_ranks(space: Space, data: st.DataObject) -> None:
    assert not has_kinds(space.problem.gpt)
    rows = np.flatnonzero(space.micro_batches > 1)[:1]
    for plain in sized(space, rows, overlap=()):
        overlap = overlaps(space.problem, space.shape(int(rows[0])))[0]
        slot_program = SlotProgram(LoweredSlots(plain), overlap)
        how = ("backward",), ModelEnds(first=True, last=True), plain_layers(2)
        middle, last = (slot_program.slots(m, *how).ops for m in (MIDDLE, 1))
        assert all(op.purpose not in SUMS for op in middle)
        assert len(middle) == sum(op.purpose not in SUMS for op in last)


def test_slots_of_the_first_micro_batch_are_its_own_and_those_between_the_lasts() -> None:
    """Three layers of 10 ticks where nothing is added to, 13 where gradients are."""
    one = np.ones(1, dtype=np.int64)
    entries = Entries(0 * one, 2 * one, 4 * one, 0 * one, one, 3 * one)
    each = {False: 10 * one, True: 13 * one}
    ticks = {(LAYER, "backward", last): {("", COMPUTE): own} for last, own in each.items()}
    slots = BusiestStream(ticks, entries, ())
    assert slots.slots("backward", INSIDE).tolist() == [30]
    assert slots.slots("backward", INSIDE, middle=True).tolist() == [39]
