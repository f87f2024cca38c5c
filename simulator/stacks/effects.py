"""Which of a plan's keys and overlaps have an effect, and whether values are those of a rule."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from workload.gpt import GPT
from workload.grid import axes_of
from workload.overlaps import mattering
from workload.pipeline.message_order import MEGATRON
from workload.plan import Plan

ABOVE = re.compile(r">(\d{1,9})")
Values = Mapping[str, Any]
SPLIT = ">1"
# Where a key has an effect, if that is not in all plans.
EFFECTIVE: Mapping[str, Values] = {
    "sp": {"tp": SPLIT},
    "context_kind": {"cp": SPLIT},
    "context_heads": {"cp": SPLIT},
    "context_latents": {"cp": SPLIT},
    "schedule": {"pp": SPLIT},
    "reshard": {"zero": 3},
    "fp8_dispatch": {"ep": SPLIT},
}


def meets(key: str, wanted: Any, held: Any) -> Any:
    """Whether what a plan has under a key is what is wanted; for an array, which entries are.

    >>> meets("x", ">1", 2), meets("zero", [0, 3], 2), meets("overlap", "ors", ("dp", "ors"))
    (True, False, True)
    """
    if isinstance(wanted, list):
        found: Any = False
        for each in wanted:
            found = found | meets(key, each, held)
        return found
    if isinstance(wanted, str) and (above := ABOVE.fullmatch(wanted)):
        return held > int(above[1])
    return wanted in held if isinstance(held, tuple) else held == wanted


def same_order(one: str, other: str, wide: Collection[str]) -> bool:
    """Whether ranks stand alike in two orders, where these axes have several ranks."""
    orders = ([axis for axis in axes_of(each) if axis in wide] for each in (one, other))
    return next(orders) == next(orders)


def in_effect(plan: Plan, gpt: GPT | None, messages: str = "") -> Iterator[str]:
    """The overlaps of a plan that have something to overlap: none is about sums over rows of x,
    nor, without an MLP for all tokens, about that. Megatron hides messages between stages under
    virtual ones alone."""
    alone = messages == MEGATRON and plan.vpp == 1 and plan.pipeline.schedule == "1f1b"
    for each in mattering(plan.training.overlap, plan.sizes):
        if each.name == "shared" and gpt is not None and not gpt.moe.shared_ffn:
            continue
        if each.name == "pp" and alone:
            continue
        yield each.name


def has_effect(key: str, plan: Plan) -> bool:
    """Whether a plan's step depends on a key at all."""
    when = EFFECTIVE.get(key, {})
    return all(meets(other, wanted, plan.value(other)) for other, wanted in when.items())
