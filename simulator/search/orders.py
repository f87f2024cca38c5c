"""In which orders a shape can run: rank orders of its grid, with the groups of its axes under each
of them, and overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, permutations
from typing import Any

import numpy as np

from simulator.search.problem import SearchProblem
from simulator.stacks.searched import overlap_of
from topologies.session import session_cached
from workload.grid import (
    AXES,
    axes_of,
    order_of,
)
from workload.overlaps import OVERLAPS, ROWS
from workload.sizes.arrays import Counts, Flags

ORDERS = tuple(order_of(axes) for axes in permutations(AXES))
NUMBER_OF = {order: number for number, order in enumerate(ORDERS)}
ANY = len(ORDERS)  # in place of an order's number
MANY_ORDERS = ANY + 1


def rank_orders(sizes: Mapping[str, int], able: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The orders that differ for axes of these sizes, the usual one first: an axis of one rank
    stays where it usually is. Where `able` has any, they are as one of these.

    >>> rank_orders({"tp": 2, "y": 1, "z": 4, "cp": 1, "dp": 1, "pp": 1})
    ('tp-dp-pp', 'z-y-tp-dp-pp')
    """
    wide = tuple(axis for axis in AXES if sizes[axis] > 1)
    return _those_of(able, wide) if able else _orders_of(wide)


def orders_of(problem: SearchProblem, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The orders for axes of these sizes that a problem's stack has."""
    return rank_orders(sizes, tuple(problem.stack.can.get("order", ())))


@session_cached(64)
def _those_of(able: tuple[str, ...], wide: tuple[str, ...]) -> tuple[str, ...]:
    standing = {tuple(axis for axis in axes_of(each) if axis in wide) for each in able}
    return tuple(
        order
        for order in _orders_of(wide)
        if tuple(axis for axis in axes_of(order) if axis in wide) in standing
    )


@session_cached(64)
def _orders_of(wide: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for order in permutations(wide):
        left = iter(order)
        found.append(order_of([next(left) if axis in wide else axis for axis in AXES]))
    return tuple(found)


def overlaps(problem: SearchProblem, shape: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The overlaps that tell plans of a shape apart, all of them first."""
    if "overlap" in problem.fixed:
        return [overlap_of(problem.stack, problem.fixed["overlap"], shape)]
    keys = (*AXES, "zero", "ep", "sp")
    columns = {key: np.array([shape[key]]) for key in keys}
    switches = [key for key, flags in matters(problem, columns).items() if flags[0]]
    offs = [off for count in range(len(switches) + 1) for off in combinations(switches, count)]
    return [tuple(switch for switch in OVERLAPS if switch not in off) for off in offs]


def matters(problem: SearchProblem, columns: Mapping[str, Counts]) -> dict[str, Flags]:
    """For each switch of `overlap` which shapes have something that it overlaps."""
    shard = problem.fixed.get("shard", 0) or columns["dp"]
    wide = (shard > 1) | (columns["cp"] > 1)
    sizes = {**columns, "shard": shard, "zero": np.where(wide, columns["zero"], 0)}
    gpt, parts = problem.gpt, columns["tp"] * (columns["sp"] > 0)
    # Linears that are not split have gradients to be summed over rows
    # (workload/lowering/layers/copied_linear.py).
    copied = bool(gpt.latent.kv_rank or gpt.moe.expert_latent or gpt.mtp.layers)
    sizes["sums_rows"] = (parts > 1) & copied
    return {each.name: each.matters(sizes) for each in ROWS if each.usual}
