"""Which fields of a model do not go together, in words."""

from __future__ import annotations

from collections.abc import Iterator

from workload.errors import ModelError
from workload.model.fields import ModelFields
from workload.models import latent_attention, moe, mtp, pattern, windows
from workload.models.rope_scaling import PLAIN, scaling_of


def wrong_fields(gpt: ModelFields) -> Iterator[str]:
    """What is wrong with a model's fields, in words that follow its name."""
    if gpt.positions == "rope" and not gpt.latent.kv_rank and gpt.width % 2:
        yield f"rope turns pairs, so a head's width {gpt.width} must be even"
    if not 0 <= gpt.dropout < 1:
        yield f"dropout={gpt.dropout} must be at least 0 and below 1"
    if gpt.attention.qkv_bias and gpt.biases:
        yield "qkv_bias=true says nothing more than biases=true; give biases=false with it"
    if gpt.attention.qk_norm and gpt.norm != "rmsnorm":
        yield f"qk_norm=true is an RMSNorm and needs norm=rmsnorm, not {gpt.norm}"
    if not 0 < gpt.norm_eps < 1:
        yield f"norm_eps={gpt.norm_eps:g} must be above 0 and below 1"
    if gpt.attention.rope_scaling != PLAIN and gpt.positions != "rope":
        yield f"rope_scaling={gpt.attention.rope_scaling} needs positions=rope, not {gpt.positions}"
    try:
        scaling = scaling_of(gpt.attention.rope_scaling)
    except ModelError as error:
        yield str(error)
    else:
        if scaling is not None and scaling.mscale_all_dim and not gpt.latent.kv_rank:
            yield f"rope_scaling={gpt.attention.rope_scaling}: mscale_all_dim needs kv_rank"
    if gpt.goldfish_k:
        yield from _wrong_goldfish(gpt)
    for part in (moe, latent_attention, windows, mtp, pattern):
        yield from part.refusals(gpt)


def _wrong_goldfish(gpt: ModelFields) -> Iterator[str]:
    for key, least in (("goldfish_k", 2), ("goldfish_h", 1)):
        if gpt.value(key) < least:
            yield f"{key}={gpt.value(key)} must be at least {least}"
    if gpt.sequence <= gpt.goldfish_h:
        yield (
            f"goldfish_h={gpt.goldfish_h} must be below sequence={gpt.sequence}: no token has so "
            "many before it"
        )
