"""How fast each pair of a head's elements turns from token to token, scaled or not."""

from __future__ import annotations

import math

import torch

from workload.models.rope_scaling import LINEAR, LLAMA3, RopeScaling, scaling_of
from workload.op import Op


def turning_rates(
    op: Op, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, float]:
    """Radians a token of each pair of `width` elements, base^(-2 i / width) where nothing is
    scaled, and what rotated queries and keys are multiplied by."""
    base = op.attributes["base"]
    exponents = torch.arange(0, width, 2, dtype=dtype, device=device) / -width
    rates = torch.pow(base, exponents)
    scaling = scaling_of(op.attributes["scaling"])
    if scaling is None:
        return rates, 1.0
    if scaling.method == LINEAR:
        return rates / scaling.factor, 1.0
    if scaling.method == LLAMA3:
        kept = _llama3(rates, scaling)
        return rates * (kept + (1 - kept) / scaling.factor), 1.0
    kept = _yarn(rates, scaling, width, base)
    return rates * (kept + (1 - kept) / scaling.factor), scaling.attention_factor


def _llama3(rates: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """The share of each rate that is not divided: by how often it turns within the original length.

    Source: meta-llama/llama-models, models/llama3/model.py, apply_scaling.
    """
    turns = rates * (scaling.original_max_position_embeddings / (2 * math.pi))
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _yarn(rates: torch.Tensor, scaling: RopeScaling, width: int, base: float) -> torch.Tensor:
    """The share of each rate that is not divided: by a ramp over the pairs' numbers.

    Source: Peng et al. (YaRN, 2309.00071), section 3.2; jquesnelle/yarn, whose bounds are whole
    numbers unless `truncate` is off.
    """

    def pair(turns: float) -> float:
        original = scaling.original_max_position_embeddings
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    last += 0.001 if first == last else 0.0
    numbers = torch.arange(len(rates), dtype=rates.dtype, device=rates.device)
    return 1 - ((numbers - first) / (last - first)).clamp(0, 1)
