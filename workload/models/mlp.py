"""Parameters of a layer's MLP."""

from __future__ import annotations

from workload.model.fields import ModelFields


def weights(gpt: ModelFields) -> int:
    """Elements of its weight matrices."""
    return gpt.hidden * (sum(gpt.up_bands) + gpt.ffn)


def others(gpt: ModelFields) -> int:
    """Elements of its biases."""
    return sum(gpt.up_bands) + gpt.hidden if gpt.biases else 0
