"""The part of a model that multi-head latent attention (MLA) adds: compressed queries and keys.

Letters: r is `kv_rank`, q `q_rank`, p `rope_width`, d `head_width`, v `value_width`. A token's keys
and values are compressed to r numbers, beside p numbers of a key that carries its position and that
all heads share; a norm and one linear make of the r numbers each head's d of the key and v of the
value. Queries, d + p wide in each head, are made of q numbers likewise, or of the hidden state.
Sources: DeepSeek-AI, DeepSeek-V2 (2405.04434), section 2.1; transformers, modeling_deepseek_v3.py,
for the two norms. Not modelled: the keys and values that inference keeps, and what it absorbs.
"""

from __future__ import annotations

from workload.model.attention import OF_FIRST_LINEAR
from workload.model.fields import ModelFields


def weights(gpt: ModelFields) -> int:
    """Elements of a layer's matrices around the core, that of its output left out."""
    h, queries = gpt.hidden, gpt.bands[0]
    of_queries = gpt.latent.q_rank * (h + queries) if gpt.latent.q_rank else h * queries
    return (
        of_queries
        + h * (gpt.latent.kv_rank + gpt.latent.rope_width)
        + gpt.latent.kv_rank * sum(up_bands(gpt))
    )


def up_bands(gpt: ModelFields) -> tuple[int, int]:
    """What the compressed numbers are made into: the keys of all heads without their positions, and
    the values."""
    return gpt.attention.heads * (gpt.width - gpt.latent.rope_width), gpt.context_width


def norm_width(gpt: ModelFields) -> int:
    """Elements that the two norms have a gain for."""
    return gpt.latent.q_rank + gpt.latent.kv_rank


def refusals(gpt: ModelFields) -> list[str]:
    """What is wrong with a model's latent attention, in words that follow the model's name."""
    if not gpt.latent.kv_rank:
        return [f"{said} needs kv_rank" for said in gpt.given_of("latent")]
    found = []
    if gpt.positions != "rope":
        found.append(f"kv_rank={gpt.latent.kv_rank} needs positions=rope, not {gpt.positions}")
    if not gpt.latent.rope_width or gpt.latent.rope_width % 2:
        found.append(
            f"kv_rank={gpt.latent.kv_rank} needs an even rope_width, not {gpt.latent.rope_width}"
        )
    if gpt.attention.kv_heads not in (0, gpt.attention.heads):
        found.append(
            f"kv_heads={gpt.attention.kv_heads} cannot be combined with kv_rank: each head has "
            "its own keys"
        )
    for key in OF_FIRST_LINEAR:
        if gpt.value(key):
            found.append(
                f"{key}=true cannot be combined with kv_rank: there is no linear of all three"
            )
    if gpt.biases:
        found.append("linears of latent attention have no biases here; give biases=false")
    return found
