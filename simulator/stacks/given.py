"""The keys of a plan that a stack gives where the user does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from workload.passes.table import EVERY

FURTHER = "overlap_of_zero"  # by a stage of ZeRO, overlaps that a plan with it has besides
OWN = ("selective", FURTHER)  # keys of a stack's `plan` that are none of a plan's


def given(plan: Mapping[str, Any], zeros: Collection[int]) -> dict[str, Any]:
    """The keys that a stack's `plan` gives, with what any of these stages of ZeRO overlaps
    besides, or the stack's own stage where there are none.

    >>> given({"zero": 1, "overlap": ["dp"], "overlap_of_zero": {"3": ["ors", "oag"]}}, [3])
    {'zero': 1, 'overlap': ('ors', 'oag', 'dp')}
    """
    keys = {key: value for key, value in plan.items() if key not in OWN}
    keys = {key: tuple(v) if isinstance(v, list) else v for key, v in keys.items()}
    further = plan.get(FURTHER, {})
    more = {word for zero in zeros or (plan.get("zero", 0),) for word in further.get(str(zero), ())}
    if more:
        named = {*more, *keys.get("overlap", ())}
        keys["overlap"] = tuple(word for word in EVERY if word in named)
    return keys
