"""Rank orders by the axis whose neighbours are nearest, and the strides of groups under each."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import PlacedProgram, sized
from simulator.search.bounds.stream_bound import Entries
from simulator.search.expert_splits import RUNS, runs_of
from simulator.search.orders import ANY, FIRST, NUMBER_OF, ORDERS, by_first_axis, rank_orders
from simulator.search.problem import SearchProblem
from simulator.search.rings.ring_numbers import RingNumbers
from simulator.search.rings.strides import (
    Spans,
    Strides,
    spans_of,
    strides_in_any_order,
    strides_of,
)
from simulator.search.root_nodes import entries_of
from simulator.search.space import space_of
from simulator.search.tree_nodes import in_every_order, with_each_axis_first
from tests.examples import few_and_many
from tests.simulator.search.drawn import MACHINES
from tests.simulator.search.test_relaxed import MIXTURE
from workload.gpt import find_model
from workload.grid import AXES, axes_of

AXIS_OF = {number: axis for axis, number in FIRST.items()}


def spans(sizes: dict[str, int], order: int) -> Mapping[str, Spans]:
    columns = {axis: np.array([size]) for axis, size in sizes.items()}
    runs = runs_of(columns, 1)
    table = np.stack([*(columns[axis] for axis in AXES), *(runs[name] for name in RUNS)])
    return spans_of(table, 0, np.array([order]))


def strides(sizes: dict[str, int], key: tuple[str, ...], order: int) -> Strides:
    """The strides of one grid's groups in one order."""
    ways, which = strides_of(spans(sizes, order), key)
    return ways[int(which[0])]


def strides_when_first(
    sizes: dict[str, int], key: tuple[str, ...], first: str
) -> frozenset[Strides]:
    """Those in any order with one axis first."""
    any_order = spans(sizes, 0)
    own = {axis: (int(far[0]), int(many[0])) for axis, (far, many) in any_order.items()}
    return strides_in_any_order(own, key, first)


SMALL = {"tp": 2, "y": 1, "z": 4, "cp": 1, "dp": 8, "pp": 1}
SMALL |= {"ep": 1, "etp": 0}


def test_an_axis_is_nearest_where_it_is_first_and_behind_the_first_elsewhere() -> None:
    assert strides_when_first(SMALL, ("z",), "z") == {((1, 4),)}
    assert strides_when_first(SMALL, ("z",), "tp") == {((2, 4),), ((16, 4),)}
    assert strides_when_first(SMALL, ("z",), "dp") == {((8, 4),), ((16, 4),)}
    assert strides_when_first(SMALL, ("z",), "") == {((n, 4),) for n in (1, 2, 8, 16)}
    experts = SMALL | {"ep": 2}  # of the eight ranks of data
    assert strides_when_first(experts, ("ep",), "dp") == {((1, 2),)}
    assert strides_when_first(experts, ("edp",), "dp") == {((2, 4),)}
    assert strides_when_first(experts, ("edp",), "tp") == {((4, 4),), ((16, 4),)}


@few_and_many(
    20,
    200,
    settings(deadline=None),
    counts=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=6, max_size=6),
    split=st.booleans(),
    key=st.sampled_from([("tp",), ("z",), ("cp",), ("dp",), ("z", "dp"), ("ep",), ("inner_cp",)]),
)
def test_strides_of_every_order_are_among_those_of_its_first_axis(
    counts: list[int], split: bool, key: tuple[str, ...]
) -> None:
    sizes = dict(zip(AXES, counts, strict=True)) | {"etp": 0}
    sizes["ep"] = sizes["cp"] * sizes["dp"] if split else 1
    wide = tuple(axis for axis in AXES if sizes[axis] > 1)
    orders = rank_orders(sizes)
    each = by_first_axis(orders, wide)
    assert sorted(sum(each.values(), ())) == sorted(NUMBER_OF[order] for order in orders)
    found = set[Strides]()
    for first, numbers in each.items():
        among = strides_when_first(sizes, key, AXIS_OF.get(first, ""))
        for number in numbers:
            assert (
                first == ANY
                or next(axis for axis in axes_of(ORDERS[number]) if sizes[axis] > 1)
                == AXIS_OF[first]
            )
            assert not among - {()} or strides(sizes, key, number) in among
        found |= among
    assert found == strides_when_first(sizes, key, "") or prod(counts) == 1


def placed_entries(some: PlacedProgram, entries: Entries) -> list[tuple[int, ...]]:
    """The row, the order of ranks, the schedule and the chunks of each entry, sorted."""
    how = entries.schedule, entries.vpp, entries.chunk
    where = some.rows[entries.lane], some.orders[entries.lane], *how
    return sorted(zip(*(column.tolist() for column in where), strict=True))


def test_orders_with_each_axis_first_are_all_orders() -> None:
    fixed = {"pp": 2, "recompute": "none", "mbs": 1, "zero": 0}
    space = space_of(SearchProblem(MIXTURE, 32, 32, fixed))
    programs = sized(space, np.arange(len(space), dtype=np.int64), together=True)
    some, fewer = max(programs, key=lambda each: len(each.rows)), 0
    for entries in entries_of(space, some.rows):
        expected = placed_entries(*in_every_order(space, some, entries))
        assert len({*expected}) == len(expected) > 0
        placed = with_each_axis_first(space, some, entries)
        assert {*placed[0].orders.tolist()} <= {ANY, *FIRST.values()}
        assert placed_entries(*in_every_order(space, *placed)) == expected
        fewer += len(placed_entries(*placed)) < len(expected)
    assert fewer


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
