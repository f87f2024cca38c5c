"""Overlaps move ops and change their streams; they lose none, and nothing reads another value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from workload.gpt import GPT
from workload.grid import AXES
from workload.lowering import lower
from workload.op import ADD_SCATTERED, COMPUTE, GRAD_SCATTER, Op
from workload.overlaps import EVERY, ROWS, SLOT, STEP, Overlap, switch_of
from workload.passes.table import SLOT_PASSES, STEP_PASSES, overlap_slot
from workload.plan import Plan
from workload.plan_text import parse_plan

TINY = GPT.of(name="tiny", layers=3, hidden=64, heads=4, ffn=256, sequence=32, vocab=128)
GRIDS = [(2, 2, 2, 1), (1, 2, 2, 2), (2, 1, 2, 2), (1, 1, 1, 2), (1, 1, 4, 1)]
WITHIN = [each.name for each in ROWS if each.scope == SLOT]
SOME = st.sets(st.sampled_from(WITHIN), min_size=1)
DRAWN = settings(deadline=None)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    x, y, z, data = draw(st.sampled_from(GRIDS))
    return Plan.of(
        tp=x,
        y=y,
        z=z,
        dp=data,
        zero=draw(st.integers(0, 3)) if data > 1 else 0,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sp=y == 1 and draw(st.booleans()),
        batch=2 * z * data,
        mbs=1,
        overlap=(),
    )


def slots_of(plan: Plan) -> list[list[Op]]:
    """The ops of each slot of a program without overlaps."""
    program = lower(TINY, plan)
    slots: dict[object, list[Op]] = {}
    for op in program.ops:
        if (slot := program.slot_of.get(op.block)) is not None:
            slots.setdefault(slot, []).append(op)
    return list(slots.values())


def values_read(ops: Sequence[Op]) -> dict[str, list[str]]:
    """For each op which op wrote each of its operands last, and what it overwrites."""
    last: dict[str, str] = {}
    found = {}
    for op in ops:
        found[op.name] = [last.get(name, "") for name in (*op.reads, *op.writes)]
        last.update(dict.fromkeys(op.writes, op.name))
    return found


@few_and_many(15, 100, DRAWN, plan=plans(), overlap=SOME)
def test_a_pass_within_slots_keeps_every_op_and_the_values_it_reads(
    plan: Plan, overlap: set[str]
) -> None:
    for ops in slots_of(plan):
        moved = overlap_slot(ops, overlap)
        assert Counter(op.name for op in moved) == Counter(op.name for op in ops)
        assert values_read(moved) == values_read(ops)


@few_and_many(15, 100, DRAWN, plan=plans(), overlap=SOME)
def test_a_pass_moves_nothing_that_is_read_behind_what_overwrites_it(
    plan: Plan, overlap: set[str]
) -> None:
    for ops in slots_of(plan):
        read_by: dict[str, list[str]] = {}
        for op in ops:
            for name in op.writes:
                read_by[f"{op.name} {name}"] = list(read_by.get(name, []))
            for name in op.reads:
                read_by.setdefault(name, []).append(op.name)
        seen: set[str] = set()
        for op in overlap_slot(ops, overlap):
            seen.add(op.name)
            for name in op.writes:
                assert set(read_by[f"{op.name} {name}"]) <= seen


@few_and_many(15, 100, DRAWN, plan=plans())
def test_the_overlap_of_a_collective_is_the_one_that_gave_it_a_stream(plan: Plan) -> None:
    for ops in slots_of(plan):
        for name in WITHIN:
            for op in overlap_slot(ops, [name]):
                assert switch_of(op) == ("" if op.stream == COMPUTE else name)


@pytest.mark.parametrize("words", ["dp=2,zero=2", "z=2"])
def test_no_more_than_four_scatters_of_gradients_are_not_awaited(words: str) -> None:
    """Those of a layer's four matrices: what multiplies meanwhile has that many in flight."""
    gpt = GPT.of(name="four", layers=4, hidden=64, heads=4, ffn=96, sequence=32, vocab=128)
    plan = parse_plan(f"{words},mbs=1,overlap=ors", batch=4)
    waiting, found = 0, set[int]()
    for op in lower(gpt, plan).ops:
        waiting += (op.purpose == GRAD_SCATTER) - (op.purpose == ADD_SCATTERED)
        found |= {waiting} if op.flops else set()
    assert (max(found), waiting) == (4, 0)


def test_every_overlap_is_one_row_with_a_source() -> None:
    assert len(set(EVERY)) == len(ROWS)
    purposes = [purpose for each in ROWS for purpose in each.purposes]
    assert len(purposes) == len(set(purposes))
    assert all(each.words and each.source for each in ROWS)


def test_every_overlap_of_slots_or_steps_has_its_pass() -> None:
    for scope, passes in ((SLOT, SLOT_PASSES), (STEP, STEP_PASSES)):
        assert [*passes] == [each.name for each in ROWS if each.scope == scope]


@pytest.mark.parametrize("each", ROWS, ids=lambda each: each.name)
def test_no_overlap_matters_on_one_rank(each: Overlap) -> None:
    sizes = dict.fromkeys((*AXES, "shard", "ep"), 1) | {"zero": 0, "sums_rows": 0}
    assert not each.matters(sizes)


@pytest.mark.parametrize("axis", ["tp", "y", "z", "dp"])
def test_an_overlap_within_slots_matters_on_the_axes_whose_collectives_it_moves(axis: str) -> None:
    sizes = dict.fromkeys((*AXES, "shard", "ep"), 1) | {"zero": 0, "sums_rows": 0, axis: 2}
    plan = parse_plan(f"{axis}=2,mbs=1,overlap={'+'.join(WITHIN)}", batch=2)
    moved = {switch_of(op) for op in lower(TINY, plan).ops}
    assert {each.name for each in ROWS if each.name in WITHIN and each.matters(sizes)} == moved & {
        *WITHIN
    }


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_of_tied_weights_are_added_head_first_and_then_summed_over_data(
    layers: int,
) -> None:
    """The first addition overwrites. Those to experts that no other rank has are summed over no
    data, and come last of all."""
    gpt = TINY.changed(layers=layers, tied=True, experts=4, topk=2, expert_ffn=32)
    program = lower(gpt, Plan(z=2, dp=2, ep=2, batch=8, mbs=2))
    whole = [op for op in program.ops if "embed.w.grad" in op.writes][:3]
    names = ["m0.head.grad.accumulate", "m0.embed.grad.accumulate", "embed.grads.reduce"]
    assert [op.name for op in whole] == names
    assert ["embed.w.grad" in op.reads for op in whole] == [False, True, True]
