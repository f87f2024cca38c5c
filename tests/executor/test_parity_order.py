"""Ranks placed on the axes in other orders: still the plain model's losses and weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.executor.test_parity import BATCH, TINY, check
from workload.plan import Plan
from workload.plan_text import parse_plan

ORDERS = ("dp-z-y-tp-pp", "pp-dp-tp-z-y", "z-pp-y-dp-tp")


def plan_of(order: str, zero: int, axes: str) -> Plan:
    text = f"{axes},order={order},zero={zero},precision=fp64"
    whole = parse_plan(text, batch=BATCH)
    return replace(whole, mbs=whole.mbs // 2)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_plan_trains_the_same_in_any_rank_order() -> None:
    grids = ("z=2,dp=2,pp=2", "tp=2,z=2,dp=2", "y=2,dp=2,pp=2")
    pairs = product(zip(ORDERS, grids, strict=True), (0, 1, 2, 3))
    plans = [plan_of(order, zero, axes) for (order, axes), zero in pairs]
    check(8, TINY, plans)


def sharded_in(order: str, zero: int) -> Plan:
    return Plan.of(
        z=2, dp=4, shard=2, zero=zero, order=order, batch=BATCH, mbs=1, precision="fp64",
    )  # fmt: skip


SHARDED = [
    sharded_in(order, zero) for zero, order in product((3, 2, 1), ("dp-z-tp-y-pp", "z-dp-tp-y-pp"))
]


@pytest.mark.slow
@pytest.mark.distributed
def test_shards_of_neighbours_on_data_are_whole_in_any_rank_order() -> None:
    check(8, replace(TINY, layers=1), [replace(SHARDED[0], mbs=2)])


@pytest.mark.slow
@pytest.mark.distributed
def test_shards_are_whole_in_any_rank_order_at_every_stage_of_zero() -> None:
    check(8, TINY, SHARDED)
