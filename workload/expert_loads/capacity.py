"""What a capacity of experts leaves out, and the places that it leaves empty.

All experts of a layer have as many places. One that is chosen more often drops what is beyond them,
and one that is chosen less often computes empty ones.
"""

from __future__ import annotations

from fractions import Fraction
from statistics import fmean

from workload.expert_loads.histogram import (
    counts_of,
    dispatched_tokens,
    expert_layers,
)
from workload.gpt import GPT
from workload.models import moe
from workload.plan import Plan


def dropped(gpt: GPT, layer: int, tokens: int) -> Fraction:
    """The share of choices for which a layer's experts have no places, if so many tokens of a rank
    choose as the model's histogram says, or all experts equally often; 0 without a capacity."""
    if not gpt.moe.capacity:
        return Fraction(0)
    own = counts_of(gpt, layer) or (1,) * gpt.moe.experts
    share = Fraction(moe.places(gpt, tokens), tokens * gpt.moe.topk)
    return sum((max(Fraction(0), Fraction(n, sum(own)) - share) for n in own), Fraction(0))


def mean_dropped(gpt: GPT, plan: Plan) -> float:
    """The share of choices without a place (see `dropped`), in the mean of all layers with
    experts."""
    if not gpt.moe.capacity:
        return 0.0
    tokens = dispatched_tokens(gpt, plan)
    return float(fmean(dropped(gpt, layer, tokens) for layer in expert_layers(gpt)))


def empty_flops(gpt: GPT, plan: Plan) -> int:
    """FLOPs of a step, forward and backward without recomputation, for places of experts that no
    token has; 0 without a capacity."""
    if not gpt.moe.capacity:
        return 0
    tokens = dispatched_tokens(gpt, plan)
    computed = Fraction(moe.slots(gpt, tokens), tokens * gpt.moe.topk)
    layers = expert_layers(gpt)
    empty = sum(computed - (1 - dropped(gpt, layer, tokens)) for layer in layers)
    each = 3 * 2 * plan.batch * gpt.sequence * gpt.moe.topk * moe.expert_weights(gpt)
    return int(empty * each)
