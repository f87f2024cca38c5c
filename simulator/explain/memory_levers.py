"""What lessens a plan's memory: changes of one key, each from the mildest to the strongest.

A degree that is raised takes its ranks from `data`, as `dp=rest` would. Keys that change what is
computed are left as they are, but for the dtype in which gradients are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from simulator.stacks.stack import Stack
from workload.gpt import GPT
from workload.grid import SHARDS
from workload.pipeline.schedule import ways
from workload.plan import Plan
from workload.recipes.table import NO_RECIPE
from workload.splits.context import LONG

Change = dict[str, Any]
Lever = list[Change]
OF_ACTIVATIONS = {  # which leave states as they are
    *("recompute", "mbs", "sp", "cp"),
    *("vpp", "schedule", "attention", "loss_chunks"),
}
CHUNKS = (2, 4, 8)  # of the loss
DEGREES = ("pp", "tp", "y")  # which split all that a device has


def levers(gpt: GPT, plan: Plan, stack: Stack) -> list[Lever]:
    """The levers of a plan beside recomputation, whether or not it runs with them."""
    found = [*_of_switches(plan, stack), *_of_states(gpt, plan), *_of_ranks(gpt, plan)]
    return [lever for lever in found if lever]


def least_bytes(memory: Any, plan: Plan, change: Change) -> int:
    """A bound from below of a changed plan's peak, from what the plan's own consists of.

    What degrees split becomes no less than in their proportion. States stay where only activations
    become fewer, and activations where states are sharded further: each rank has as many rows as
    before. A recipe's copies have room for each expert of a rank besides, which becomes less.
    """
    parts = memory.parts
    if "pp" in change and change["pp"] < plan.pp:  # ends hold less beside their layers
        return 0
    if "gradients" in change:  # the workspace has fp32 copies for sums over shards, which go too
        halved = parts.get("gradients", 0) // 2
        return int(memory.peak_bytes - halved - parts.get("workspace", 0))
    if "offload" in change:
        return int(memory.peak_bytes - parts.get("optimizer", 0))
    for degree in DEGREES:
        if change.get(degree, 0) > plan.value(degree):
            return int(memory.peak_bytes * plan.value(degree) // change[degree])
    if not OF_ACTIVATIONS.isdisjoint(change) and "z" not in change:
        return int(memory.resident_bytes)
    if not {"ep", "etp"}.isdisjoint(change) and plan.training.recipe != NO_RECIPE:
        return 0
    return int(parts["activations"])


def _of_switches(plan: Plan, stack: Stack) -> Iterator[Lever]:
    """Of what is one or the other."""
    if plan.tp > 1 and plan.y == 1 and not plan.sp:
        yield [{"sp": True}]
    if plan.training.attention == "unfused" and stack.plan.get("attention") != "unfused":
        yield [{"attention": "flash"}]
    if plan.training.loss == "plain" and plan.training.loss_chunks == 1:
        yield [{"loss_chunks": count} for count in CHUNKS]
    if plan.pipeline.schedule != "1f1b" and plan.pp > 1:
        yield [{"schedule": "1f1b"}]
    if not plan.reshard:
        yield [{"reshard": True}]
    if plan.training.gradients == "fp32" and plan.training.precision == "bf16":
        yield [{"gradients": "bf16"}]
    if plan.training.offload == "none":
        yield [{"offload": "optimizer"}]


def _of_states(gpt: GPT, plan: Plan) -> Iterator[Lever]:
    """Of sizes that leave the ranks' grid as it is."""
    halves = [plan.mbs >> n for n in range(1, plan.mbs.bit_length())]
    yield [{"mbs": size} for size in halves if plan.mbs % size == 0]
    yield [{"zero": zero} for zero in range(plan.zero + 1, 4) if plan.dp * plan.cp > 1]
    if plan.shard:
        more = range(2 * plan.shard, plan.dp, plan.shard)
        yield [*({"shard": size} for size in more if plan.dp % size == 0), {"shard": 0}]
    if plan.vpp > 1:  # warm-up holds 1 + (pp - 1) / (pp * vpp) of a stage
        most = gpt.layers // plan.pp
        yield [
            *({"vpp": n} for n in range(plan.vpp + 1, most + 1)),
            {"vpp": 1},
        ]
    yield [{"ep": plan.ep << n} for n in range(1, (gpt.moe.experts // plan.ep).bit_length())]
    if 0 < plan.etp < plan.tp:
        yield [{"etp": n} for n in _multiples(plan.etp, plan.tp)]


def _of_ranks(gpt: GPT, plan: Plan) -> Iterator[Lever]:
    """Of degrees that take ranks from data."""
    factors = [n for n in range(2, plan.dp + 1) if plan.dp % n == 0]
    as_it_is = _micro_batch(plan)
    for degree in (*DEGREES, *(["cp"] if gpt.sequence >= LONG else [])):
        size = plan.value(degree)
        yield [{degree: size * n, "dp": plan.dp // n, **as_it_is} for n in factors]
    fewer = [n for n in range(2, plan.pp + 1) if plan.pp % n == 0]
    yield from ([{"pp": plan.pp // n, "dp": plan.dp * n, **as_it_is}] for n in fewer)
    halves = [1 << n for n in range(1, plan.dp.bit_length()) if plan.dp % (1 << n) == 0]
    yield [{"z": plan.z * n, "dp": plan.dp // n} for n in halves]


def _micro_batch(plan: Plan) -> Change:
    """The plan's micro-batch, where it is all that a rank has: else unsaid, it would grow."""
    ranks = prod(plan.value(axis) for axis in SHARDS["sequences"]) * ways(plan.pipeline.schedule)
    return {"mbs": plan.mbs} if plan.batch == plan.mbs * ranks else {}


def _multiples(size: int, most: int) -> list[int]:
    return [n for n in range(2 * size, most + 1, size) if most % n == 0]
