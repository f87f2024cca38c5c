"""Sharding over data against the plain model: zero=1, 2 and 3, alone and with all that it meets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.executor.test_parity import TINY, check, grids, plan_of
from workload.gpt import GPT
from workload.plan import Plan
from workload.plan_text import parse_plan

UNTIED = replace(TINY, tied=False)
VARIED = ("zero", "shard", "overlap", "recompute", "micro_batches", "reshard", "offload")


def zero_plan(
    grid: tuple[int, ...], zero: int, options: tuple[bool, str, int], **more: Any
) -> Plan:
    """A plan of 16 sequences, or of 24 where three micro-batches are to be run."""
    overlap, recompute, micro_batches = options
    if micro_batches != 3:
        return plan_of(grid, overlap, recompute, micro_batches).changed(zero=zero, **more)
    plan = plan_of(grid, overlap, recompute, 1)
    micro_batch = 24 // (3 * plan.z * plan.dp)
    return plan.changed(zero=zero, batch=24, mbs=micro_batch, **more)


def shards(data: int) -> list[int]:
    """Over how many neighbours on data one may shard: all of them (0), or fewer."""
    return [0, *(n for n in range(2, data) if data % n == 0)]


def every_plan(ranks: int) -> Iterator[Plan]:
    """Every grid that splits data, way to shard it, recomputation, overlap and resharding; in one
    of five the optimizer's states live in the host's memory."""
    offload = itertools.cycle(["none"] * 4 + ["optimizer"])
    for grid in (grid for grid in grids(ranks) if grid[3] > 1):
        for zero, shard in itertools.product((1, 2, 3), shards(grid[3])):
            for options in itertools.product((False, True), ("none", "full"), (1, 2, 3)):
                for reshard in (True, False):
                    more = {"shard": shard, "reshard": reshard, "offload": next(offload)}
                    yield zero_plan(grid, zero, options, **more)


def some_plans(ranks: int) -> list[Plan]:
    """All plans on up to four ranks; on eight every seventh, which have every pair of values."""
    every = list(every_plan(ranks))
    return every if ranks <= 4 else every[::7]


def pairs_of(plans: list[Plan]) -> set[frozenset[tuple[str, object]]]:
    """Every two values that meet in one of the plans."""
    found: set[frozenset[tuple[str, object]]] = set()
    for plan in plans:
        values: list[tuple[str, object]] = [("grid", (plan.tp, plan.y, plan.z, plan.dp))]
        values += [(name, plan.value(name)) for name in VARIED]
        found |= set(map(frozenset, itertools.combinations(values, 2)))
    return found


@pytest.mark.slow
def test_on_eight_ranks_every_pair_of_values_is_among_some_plans() -> None:
    assert pairs_of(some_plans(8)) == pairs_of(list(every_plan(8)))


FEW = {
    2: [
        zero_plan((1, 1, 1, 2), 1, (True, "none", 2)),
        zero_plan((1, 1, 1, 2), 2, (True, "full", 3), offload="optimizer"),
        zero_plan((1, 1, 1, 2), 3, (True, "none", 2)),
        zero_plan((1, 1, 1, 2), 3, (False, "none", 1), reshard=False),
        zero_plan((1, 1, 2, 1), 0, (True, "full", 2), reshard=False),
    ],
    4: [
        zero_plan((1, 1, 2, 2), 1, (True, "full", 3), offload="optimizer"),
        zero_plan((1, 1, 2, 2), 2, (True, "none", 2)),
        zero_plan((1, 1, 2, 2), 3, (True, "full", 3), reshard=False),
        zero_plan((1, 1, 1, 4), 1, (True, "none", 2), shard=2),
        zero_plan((1, 1, 1, 4), 2, (True, "none", 1), shard=2, reshard=False),
        zero_plan((1, 1, 1, 4), 3, (False, "full", 2), shard=2),
        zero_plan((2, 1, 1, 2), 2, (False, "none", 2)),
    ],
    8: [
        zero_plan((1, 1, 2, 4), 2, (True, "full", 1), shard=2),
        zero_plan((1, 2, 2, 2), 3, (True, "none", 2)),
    ],
}


@pytest.mark.distributed
def test_sharded_over_data_it_trains_as_the_plain_model_does() -> None:
    """Every stage, with and without overlap, resharding, and an optimizer on the host."""
    check(2, TINY, FEW[2])


@pytest.mark.slow
@pytest.mark.distributed
def test_sharded_over_neighbours_on_data_it_trains_as_the_plain_model_does() -> None:
    """With copies of shards, whose gradients are summed besides."""
    check(4, TINY, FEW[4][5:6])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "gpt"), [(4, TINY), (8, UNTIED)])
def test_sharded_on_more_ranks_it_trains_as_the_plain_model_does(ranks: int, gpt: GPT) -> None:
    check(ranks, gpt, FEW[ranks])


@pytest.mark.distributed
def test_shards_that_do_not_divide_a_weight_are_filled_up_with_zeros() -> None:
    """Three ranks share weights of 1,024 elements and their multiples, and 8,000 of the table."""
    check(3, TINY, [uneven_plan(UNEVEN[2])])


UNEVEN = (
    "dp=3,zero=2,mbs=4",
    "z=3,recompute=full,mbs=4",
    "dp=3,zero=3,reshard=false,offload=optimizer,overlap=none",
    "dp=3,zero=1,mbs=4",
    "dp=3,zero=3,mbs=4",
    "z=3,overlap=none",
)


def uneven_plan(text: str) -> Plan:
    return parse_plan(f"{text},precision=fp64", batch=24)


@pytest.mark.distributed
@pytest.mark.slow
def test_shards_are_filled_up_so_under_more_plans() -> None:
    check(3, TINY, [uneven_plan(text) for text in UNEVEN])
    texts = [f"z=3,dp=2,zero={zero},mbs=2" for zero in (1, 2, 3)]
    check(6, UNTIED, [uneven_plan(text) for text in texts])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("gpt", [TINY, UNTIED], ids=["tied", "untied"])
def test_ways_to_shard_train_as_the_plain_model_does(gpt: GPT, ranks: int) -> None:
    check(ranks, gpt, some_plans(ranks))
