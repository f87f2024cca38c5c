"""Rank orders by the axis whose neighbours are nearest, and the strides of groups under each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import sized
from simulator.search.expert_splits import RUNS, runs_of
from simulator.search.orders import NUMBER_OF, rank_orders
from simulator.search.problem import SearchProblem
from simulator.search.rings.ring_numbers import RingNumbers
from simulator.search.rings.strides import (
    Spans,
    Strides,
    spans_of,
    strides_in_any_order,
    strides_of,
)
from simulator.search.space import space_of
from tests.examples import few_and_many
from tests.simulator.search.drawn import MACHINES
from workload.gpt import find_model
from workload.grid import AXES


def spans(sizes: dict[str, int], order: int) -> Mapping[str, Spans]:
    columns = {axis: np.array([size]) for axis, size in sizes.items()}
    runs = runs_of(columns)
    table = np.stack([*(columns[axis] for axis in AXES), *(runs[name] for name in RUNS)])
    return spans_of(table, 0, np.array([order]))


def strides(sizes: dict[str, int], key: tuple[str, ...], order: int) -> Strides:
    """The strides of one grid's groups in one order."""
    ways, which = strides_of(spans(sizes, order), key)
    return ways[int(which[0])]


def strides_anywhere(sizes: dict[str, int], key: tuple[str, ...]) -> frozenset[Strides]:
    """Those in any order."""
    any_order = spans(sizes, 0)
    own = {axis: (int(far[0]), int(many[0])) for axis, (far, many) in any_order.items()}
    return strides_in_any_order(own, key)


SMALL = {"tp": 2, "y": 1, "z": 4, "cp": 1, "dp": 8, "pp": 1}
SMALL |= {"ep": 1, "etp": 0}


def test_an_axis_may_stand_behind_any_others() -> None:
    assert strides_anywhere(SMALL, ("z",)) == {((n, 4),) for n in (1, 2, 8, 16)}
    experts = SMALL | {"ep": 2}  # of the eight ranks of data
    assert strides_anywhere(experts, ("ep",)) == {((n, 2),) for n in (1, 2, 4, 8)}


@few_and_many(
    20,
    200,
    settings(deadline=None),
    counts=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=6, max_size=6),
    split=st.booleans(),
    key=st.sampled_from([("tp",), ("z",), ("cp",), ("dp",), ("z", "dp"), ("ep",), ("inner_cp",)]),
)
def test_strides_of_every_order_are_among_those_of_any(
    counts: list[int], split: bool, key: tuple[str, ...]
) -> None:
    sizes = dict(zip(AXES, counts, strict=True)) | {"etp": 0}
    sizes["ep"] = sizes["cp"] * sizes["dp"] if split else 1
    among = strides_anywhere(sizes, key)
    for order in rank_orders(sizes):
        assert not among - {()} or strides(sizes, key, NUMBER_OF[order]) in among


@pytest.mark.parametrize("sums_first", [True, False])
def test_in_unknown_places_a_gather_has_the_ideal_rings_and_a_sum_has_none(
    sums_first: bool,
) -> None:
    """Four ranks of eight along z and data, under any order: a gather is no faster than on the
    ideal rings of four, and a sum may be faster, whichever of both is asked for first."""
    fixed = {"tp": 2, "y": 1, "z": 2, "pp": 1, "mbs": 1, "zero": 0, "recompute": "none"}
    fixed |= {"sp": False}
    space, fabric = (
        space_of(SearchProblem(find_model("tiny-30k"), 8, 8, fixed)),
        MachineFabric(MACHINES["frontier"], 8),
    )
    some, numbers = next(sized(space, np.zeros(1, dtype=np.int64))), RingNumbers(space, fabric)
    expected = {True: (), False: tuple(fabric.fastest(fabric.ideal(4)))}
    assert expected[False]
    for reduces in (sums_first, not sums_first):
        (number,) = numbers.of(some, (("z", "dp"), reduces, False)).tolist()
        assert numbers.rings[number] == expected[reduces]
