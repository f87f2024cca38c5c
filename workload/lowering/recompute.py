"""Which layers run again in the backward pass, and how much of each.

Source: Korthikanti et al. (2205.05198), section 5; Megatron-LM's recompute_num_layers, "block".
"""

from __future__ import annotations

from workload.gpt import GPT
from workload.models import windows
from workload.plan import Plan


def recomputed(plan: Plan, index: int) -> str:
    """What of a chunk's layer `index` runs again: "none", "selective" (its core), parts, or "full".

    >>> two = Plan(batch=1, micro_batch=1, recompute="full:2")
    >>> [recomputed(two, index) for index in range(3)]
    ['full', 'full', 'none']
    """
    word, _, count = plan.recompute.partition(":")
    return "none" if count and index >= int(count) else word


def layers_are_alike(gpt: GPT, plan: Plan, layers: int) -> bool:
    """Whether all layers of a chunk of so many are of one kind, and recomputed in the same way."""
    return (
        windows.are_alike(gpt)
        and not gpt.mtp_layers
        and recomputed(plan, 0) == recomputed(plan, layers - 1)
    )
