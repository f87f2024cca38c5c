"""Megatron-LM's `a2a+p2p`: neighbours trade rows for heads before keys and values go around a ring.

Source: NVIDIA/Megatron-LM, megatron/core/model_parallel_config.py
(`hierarchical_context_parallel_sizes`: first the ranks of the all-to-all, then those of the ring).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from simgpt.frameworks.reading import Reading

KIND, SIZES, BOTH = "cp-comm-type", "hierarchical-context-parallel-sizes", "a2a+p2p"


def read(reading: Reading) -> None:
    """Read how many neighbours trade heads."""
    words, sizes = reading.text(SIZES).split(), reading.numbers(SIZES)
    if reading.text(KIND) != BOTH:
        if words:
            reading.without(SIZES)
        return
    context = reading.fields.get("cp", 1)
    if len(words) != 2 or len(sizes) != 2 or prod(sizes) != context:
        why = f"{BOTH} needs the ranks of the all-to-all and those of the ring, whose product is "
        reading.refuse(SIZES if words else KIND, f"{why}context-parallel-size={context}")
        return
    heads, ring = sizes
    if ring == 1:
        reading.fields["context_kind"] = "ulysses"
    elif heads > 1:
        reading.fields["context_heads"] = heads


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of neighbours that trade heads."""
    heads = fields["context_heads"]
    if heads == 1:
        return {}
    return {KIND: BOTH, SIZES: [heads, fields["cp"] // heads]}
