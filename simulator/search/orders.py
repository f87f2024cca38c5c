"""In which orders a shape can run: rank orders of its grid, with the groups of its axes under each
of them, and overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, permutations
from math import prod
from typing import Any

import numpy as np

from simulator.search.asked.exchanges import in_order
from simulator.search.asked.expert_splits import RUNS
from simulator.search.problem import SearchProblem
from topologies.session import session_cached
from workload.grid import (
    AXES,
    COPIES_IN_SHARDS,
    PARTS_OF_EXPERTS,
    SHARD_PARTS,
    WHERE,
    axes_of,
    order_of,
)
from workload.passes.table import OVERLAPS, PASSES
from workload.sizes.arrays import Counts, Flags, Indices

ORDERS = tuple(order_of(axes) for axes in permutations(AXES))
ANY = len(ORDERS)  # in place of an order's number
PART_OF = {
    **dict.fromkeys((*SHARD_PARTS, *PARTS_OF_EXPERTS, *COPIES_IN_SHARDS), "data"),
    **{f"{where}_{axis}": axis for where in WHERE for axis in ("x", "context")},
}
Span = tuple[int, int]  # a stride and a size
Strides = tuple[Span, ...]


def rank_orders(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The orders that differ for axes of these sizes, the usual one first: an axis of one rank
    stays where it usually is.

    >>> rank_orders({"x": 2, "y": 1, "z": 4, "context": 1, "data": 1, "pipe": 1})
    ('x-y-z-data-pipe', 'z-y-x-data-pipe')
    """
    return _orders_of(tuple(axis for axis in AXES if sizes[axis] > 1))


@session_cached(64)
def _orders_of(wide: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for order in permutations(wide):
        left = iter(order)
        found.append(order_of([next(left) if axis in wide else axis for axis in AXES]))
    return tuple(found)


@session_cached(4096)
def spans_of(sizes: tuple[int, ...], shard: int, order: str) -> Mapping[str, Span]:
    """The stride and size of every axis, and of the parts of x, context and data, given the sizes
    of AXES and the numbers of RUNS."""
    named = dict(zip((*AXES, *RUNS), sizes, strict=True))
    found, stride = {}, 1
    for axis in axes_of(order):
        found[axis] = stride, named[axis]
        stride *= named[axis]
    outer, data = found["data"]
    run = shard or data
    found |= {"shard": (outer, run), "replica": (outer * run, data // run)}
    apart = named["expert_tensor"] * named["expert"]
    found["expert_shard"] = outer * apart, max(run // apart, 1)
    return {
        **found,
        **_parts(found["data"], PARTS_OF_EXPERTS, sizes[-2:]),
        **_parts(found["context"], tuple(f"{where}_context" for where in WHERE), sizes[-4:-2]),
        **_parts(found["x"], tuple(f"{where}_x" for where in WHERE), sizes[-6:-4]),
    }


def _parts(whole: Span, names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, Span]:
    """The parts of an axis, the fastest first, the last of which is what the others leave."""
    stride, left, found = *whole, dict[str, Span]()
    for name, size in zip(names, (*sizes, left // prod(sizes)), strict=True):
        found[name] = stride, size
        stride *= size
    return found


def strides(spans: Mapping[str, Span], axes: tuple[str, ...]) -> Strides:
    """What tells the groups of some axes apart from others on as many ranks: strides and sizes.

    >>> strides({"z": (2, 4), "data": (8, 8)}, ("z", "data"))
    ((2, 32),)
    """
    found: list[Span] = []
    for stride, size in sorted(spans[axis] for axis in axes):
        if size == 1:
            continue
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0], found[-1][1] * size
        else:
            found.append((stride, size))
    return tuple(found)


def strides_in_any_order(spans: Mapping[str, Span], axes: tuple[str, ...]) -> frozenset[Strides]:
    """The strides of some axes under all rank orders; none where these are too many."""
    wide = [axis for axis in axes if spans[axis][1] > 1]
    ranks = prod(spans[axis][1] for axis in AXES)
    if len(wide) != 1:
        size = prod(spans[axis][1] for axis in wide)
        return frozenset({strides(spans, axes)} if size in (1, ranks) else ())
    (stride, size), own = spans[wide[0]], PART_OF.get(wide[0], wide[0])
    others = [spans[axis][1] for axis in AXES if axis != own and spans[axis][1] > 1]
    inner = stride // spans[own][0]
    ways = (some for count in range(len(others) + 1) for some in combinations(others, count))
    return frozenset({((inner * prod(some), size),) for some in ways})


def members(way: Strides, ranks: int) -> Indices:
    """The groups along some lines, (groups, members), of so many ranks."""
    shape, outer, places = list[int](), ranks, list[int]()
    for stride, size in reversed(way):
        places.append(len(shape) + 1)
        shape += [outer // (stride * size), size]
        outer = stride
    shape.append(outer)
    rest = [place for place in range(len(shape)) if place not in places]
    every = np.arange(ranks, dtype=np.int64).reshape(shape).transpose(*rest, *places)
    return every.reshape(-1, prod(size for _, size in way))


def overlaps(problem: SearchProblem, shape: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The overlaps that tell plans of a shape apart, all of them first."""
    beside = problem.of_exchanges
    if "overlap" in problem.fixed:
        given = problem.fixed["overlap"]
        return [given if {*beside} <= {*given} else in_order((*given, *beside))]
    columns = {key: np.array([shape[key]]) for key in (*AXES, "zero", "expert")}
    switches = [key for key, flags in matters(problem, columns).items() if flags[0]]
    offs = [off for count in range(len(switches) + 1) for off in combinations(switches, count)]
    searched = in_order((*OVERLAPS, *beside))
    return [tuple(switch for switch in searched if switch not in off) for off in offs]


def matters(problem: SearchProblem, columns: Mapping[str, Counts]) -> dict[str, Flags]:
    """For each switch of `overlap` which shapes have something that it overlaps."""
    shard = problem.fixed.get("shard", 0) or columns["data"]
    wide = (shard > 1) | (columns["context"] > 1)
    sizes = {**columns, "shard": shard, "zero": np.where(wide, columns["zero"], 0)}
    sizes["shared_ffn"] = np.full_like(columns["expert"], problem.gpt.shared_ffn)
    return {each.name: each.matters(sizes) for each in PASSES if each.usual}
