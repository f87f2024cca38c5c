"""Which layers run again in the backward pass, and how much of each.

Source: Korthikanti et al. (2205.05198), section 5; Megatron-LM's recompute_num_layers, "block".
"""

from __future__ import annotations

from workload.plan import Plan
from workload.recomputation.parts import FULL, PER_OP


def recomputed(plan: Plan, index: int) -> str:
    """What of a chunk's layer `index` runs again: "none", "selective" (its core), parts, or "full",
    which "per_op" is too, but for what is kept.

    >>> two = Plan.of(batch=1, mbs=1, recompute="full:2")
    >>> [recomputed(two, index) for index in range(3)]
    ['full', 'full', 'none']
    """
    word, _, count = plan.training.recompute.partition(":")
    if word == PER_OP:
        return FULL
    return "none" if count and index >= int(count) else word
