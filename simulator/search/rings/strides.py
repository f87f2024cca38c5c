"""Where the ranks of an axis stand: the strides and sizes of groups, in each rank order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

import numpy as np

from simulator.search.expert_splits import RUNS
from simulator.search.orders import ORDERS
from workload.grid import (
    AXES,
    COPIES_IN_SHARDS,
    PARTS_OF_EXPERTS,
    SHARD_PARTS,
    WHERE,
    axes_of,
)
from workload.sizes.arrays import Counts, Indices, distinct

PART_OF = {
    **dict.fromkeys((*SHARD_PARTS, *PARTS_OF_EXPERTS, *COPIES_IN_SHARDS), "dp"),
    **{f"{where}_{axis}": axis for where in WHERE for axis in ("tp", "cp")},
}
Span = tuple[int, int]  # a stride and a size
Strides = tuple[Span, ...]
Spans = tuple[Counts, Counts]  # strides and sizes, an entry for each grid
IN_ORDER = np.array([[AXES.index(axis) for axis in axes_of(order)] for order in ORDERS])
FARTHEST = int(np.iinfo(np.int64).max)


def spans_of(sizes: Counts, shard: int, orders: Indices) -> Mapping[str, Spans]:
    """The strides and sizes of every axis, and of the parts of x, context and data, of grids with
    their ranks in these orders, by number. `sizes` has a row for each of AXES and of RUNS, and a
    column for each grid; `shard` is the part of data that shards, or 0."""
    axes = IN_ORDER[orders].T
    own = np.take_along_axis(sizes[: len(AXES)], axes, axis=0)
    strides = np.empty_like(own)
    np.put_along_axis(strides, axes, np.cumprod(own, axis=0) // own, axis=0)
    found = {axis: (strides[at], sizes[at]) for at, axis in enumerate(AXES)}
    named = dict(zip((*AXES, *RUNS), sizes, strict=True))
    outer, data = found["dp"]
    run = np.full_like(data, shard) if shard else data
    apart = named["etp"] * named["ep"]
    found |= {"shard": (outer, run), "replica": (outer * run, data // run)}
    found["edp_shard"] = outer * apart, np.maximum(run // apart, 1)
    return {
        **found,
        **_parts(found["dp"], PARTS_OF_EXPERTS, sizes[-2:]),
        **_parts(found["cp"], tuple(f"{where}_cp" for where in WHERE), sizes[-4:-2]),
        **_parts(found["tp"], tuple(f"{where}_tp" for where in WHERE), sizes[-6:-4]),
    }


def _parts(whole: Spans, names: Sequence[str], sizes: Counts) -> dict[str, Spans]:
    """The parts of an axis, the fastest first, the last of which is what the others leave."""
    stride, left = whole
    found = dict[str, Spans]()
    for name, size in zip(names, (*sizes, left // (sizes[0] * sizes[1])), strict=True):
        found[name] = stride, size
        stride = stride * size
    return found


def strides_of(spans: Mapping[str, Spans], axes: tuple[str, ...]) -> tuple[list[Strides], Indices]:
    """What tells the groups of some axes apart from others on as many ranks, strides and sizes: all
    that differ, and which of them each grid has.

    >>> spans = {"z": (np.array([2]), np.array([4])), "data": (np.array([8]), np.array([8]))}
    >>> strides_of(spans, ("z", "data"))
    ([((2, 32),)], array([0]))
    """
    stride, size = (np.stack([spans[axis][part] for axis in axes]) for part in (0, 1))
    stride, size = _nearest_first(stride, size)
    for at in range(1, len(axes)):
        joins = stride[at - 1] * size[at - 1] == stride[at]
        stride[at] = np.where(joins, stride[at - 1], stride[at])
        size[at] = np.where(joins, size[at - 1] * size[at], size[at])
        size[at - 1] = np.where(joins, 1, size[at - 1])
    stride, size = _nearest_first(stride, size)
    first, which = distinct([*stride, *size])
    pairs = np.stack([stride[:, first], size[:, first]]).T.tolist()
    return [tuple((near, many) for near, many in way if many > 1) for way in pairs], which


def _nearest_first(stride: Counts, size: Counts) -> tuple[Counts, Counts]:
    """The axes of each grid by their strides, those of one rank last."""
    stride = np.where(size > 1, stride, FARTHEST)
    order = np.argsort(stride, axis=0, kind="stable")
    return np.take_along_axis(stride, order, axis=0), np.take_along_axis(size, order, axis=0)


def strides_in_any_order(spans: Mapping[str, Span], axes: tuple[str, ...]) -> frozenset[Strides]:
    """The strides of some axes under all rank orders; none where these are too many."""
    wide = [axis for axis in axes if spans[axis][1] > 1]
    ranks = prod(spans[axis][1] for axis in AXES)
    if len(wide) != 1:
        size = prod(spans[axis][1] for axis in wide)
        whole: Strides = ((1, ranks),) if size > 1 else ()
        return frozenset({whole} if size in (1, ranks) else ())
    (stride, size), own = spans[wide[0]], PART_OF.get(wide[0], wide[0])
    inner = stride // spans[own][0]
    others = [spans[axis][1] for axis in AXES if axis != own and spans[axis][1] > 1]
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
