"""Programs of many layers from those of a few: op by op what the lowering writes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from simulator.engine.columns import Lists
from simulator.engine.whole_program import table_of
from tests.examples import one_in
from tests.simulator.worlds import TINY, by_hand, compute, plan_of
from workload.lowering import lower
from workload.plan import Plan
from workload.repetition import IrregularError, OpTable, Repeat, repeated
from workload.structure import Structure

FEW, WHOLE = 12, 21
GRIDS = ("tp=1", "z=4", "tp=2,y=2,z=2,dp=2", "tp=4,sp=true", "tp=2,dp=4,zero=1")
RESTS = (
    "zero=0",
    "zero=2",
    "zero=3",
    "zero=3,reshard=false",
    "offload=optimizer",
    "zero=3,offload=parameters",
    "reshard=false",
    "optimizer=muon",
)
RECOMPUTES = ("none", "full", "selective")
OVERLAPS = ("none", "oar", "oag", "dp", "oar+ors+oag", "all")
EVERY = 7  # of all combinations, so that each pair of values occurs
QUICK = 24  # of these again; the others are slow tests


def outline(layers: int, plan: Plan) -> Structure:
    return lower(replace(TINY, layers=layers), plan).outline


def grown(few: Structure, kept: int, whole: int) -> OpTable:
    """The program of so many equal layers, from one that keeps some of them."""
    return repeated(table_of(few), (Repeat(0, 1, kept, whole),))


def waits_of(table: OpTable) -> list[tuple[int, ...]]:
    return Lists(table.wait_offsets, table.waits).lists


def plans() -> list[str]:
    rows = [
        f"{grid},{rest},recompute={recompute},overlap={overlap}"
        for grid, rest, recompute, overlap in product(GRIDS, RESTS, RECOMPUTES, OVERLAPS)
        if not ("zero=" in grid and "zero=" in rest)
    ]
    return rows[::EVERY]


@pytest.mark.parametrize("text", one_in(QUICK, plans()))
def test_a_repeated_program_is_the_one_that_is_lowered_whole(text: str) -> None:
    plan = plan_of(text, 2)
    few, whole = outline(FEW, plan), outline(WHOLE, plan)
    found, expected = grown(few, FEW, WHOLE), table_of(whole)
    copied = [few.ops[base] for base in found.base.tolist()]
    for name in ("kind", "stream", "axes", "label", "purpose", "dtype", "is_recomputed"):
        assert [getattr(op, name) for op in copied] == [getattr(op, name) for op in whole.ops]
    assert found.layer.tolist() == expected.layer.tolist()
    assert found.micro_batch.tolist() == expected.micro_batch.tolist()
    assert [sorted(own) for own in waits_of(found)] == [sorted(own) for own in whole.waits]


def test_a_program_of_as_many_layers_is_itself() -> None:
    few = outline(3, plan_of("z=2", 2))
    assert repeated(table_of(few), ()) is table_of(few)
    assert waits_of(table_of(few)) == [tuple(own) for own in few.waits]


def test_layers_that_are_recomputed_unlike_each_other_do_not_repeat() -> None:
    few = outline(FEW, plan_of("z=2,recompute=full:9", 2))
    with pytest.raises(IrregularError):
        grown(few, FEW, WHOLE)


def test_a_layer_in_the_middle_that_is_another_does_not_repeat() -> None:
    for other in (4, 5, 6):
        ops = [
            compute(f"m0.l{n}.{what}", writes=f"q{n}{what}")
            for n in range(FEW)
            for what in ("one", "other" if n == other else "two")
        ]
        with pytest.raises(IrregularError):
            grown(by_hand("tp=1", *ops).outline, FEW, WHOLE)


def test_something_between_two_layers_in_the_middle_does_not_repeat() -> None:
    for place in (4, 5):
        ops = []
        for n in range(FEW):
            ops += [compute(f"m0.l{n}.{what}", writes=f"q{n}{what}") for what in ("one", "two")]
            ops += [compute("m0.pause", writes="p")] * (n == place)
        with pytest.raises(IrregularError):
            grown(by_hand("tp=1", *ops).outline, FEW, WHOLE)


def test_waits_keep_their_distance_or_their_end_of_the_model() -> None:
    """Work of layer n waits for the gather of layer n, and for one that all wait for."""
    gathers = [compute(f"m0.l{n}.gather", writes=f"p{n}", stream="z") for n in range(5)]
    works = [compute(f"m0.l{n}.work", reads=f"p{n} b", writes=f"q{n}") for n in range(5)]
    begin = compute("m0.begin", writes="b", stream="y")
    found = grown(by_hand("tp=1", begin, *gathers, *works).outline, 5, 8)
    assert found.layer.tolist() == [-1, *range(8), *range(8)]
    assert waits_of(found)[-8:] == [(n + 1, 0) for n in range(8)]
    assert np.array_equal(np.diff(found.wait_offsets), [0] * 9 + [2] * 8)


def test_a_wait_that_reaches_back_to_an_end_in_one_of_two_turns_is_refused() -> None:
    """The host clips a layer's gradients once those of two layers before are there: of four layers
    the third waits for the first one's, the second for what stands before all layers."""
    plan = plan_of("dp=2,zero=1,offload=update,recompute=full", 1)
    with pytest.raises(IrregularError):
        grown(outline(4, plan), 4, 9)
    assert waits_of(grown(outline(5, plan), 5, 9)) == waits_of(table_of(outline(9, plan)))


def test_an_op_that_stands_twice_in_a_layer_is_refused() -> None:
    ops = [compute(f"m0.l{n}.work", writes=f"q{n}") for n in (0, 1, 1, 2, 3, 4)]
    with pytest.raises(IrregularError):
        grown(by_hand("tp=1", *ops).outline, 5, 8)
