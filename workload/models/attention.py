"""Parameters of a layer's attention, plain or latent."""

from __future__ import annotations

from workload.model.fields import ModelFields
from workload.models import latent_attention


def weights(gpt: ModelFields) -> int:
    """Elements of its weight matrices."""
    into = gpt.hidden * sum(gpt.first_bands)
    into = latent_attention.weights(gpt) if gpt.latent.kv_rank else into
    return into + gpt.hidden * gpt.context_width


def others(gpt: ModelFields) -> int:
    """Its other parameters: biases, gains of norms within it, sinks."""
    norms = 2 * gpt.width * gpt.attention.qk_norm + latent_attention.norm_width(gpt)
    biases = sum(gpt.first_bands) if gpt.has_bias("qkv") else 0
    biases += gpt.hidden if gpt.biases else 0
    return norms + biases + gpt.attention.heads * gpt.attention.sinks
