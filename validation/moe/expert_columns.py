"""The columns of a run that mixtures of experts, latent attention and hybrids add: fields of a
model, words of a plan."""

from __future__ import annotations

from typing import Any

from validation.published.runs import PublishedRun
from workload.gpt import find_model
from workload.models.hybrids.pattern import OF_MAMBA

OF_EXPERTS = ("experts", "topk", "expert_ffn", "shared_ffn", "dense_layers", "expert_every")
OF_LATENT = ("q_rank", "kv_rank", "rope_width", "value_width")
COLUMNS = (*OF_EXPERTS, *OF_LATENT, "head_width")
LAYERS_OF = "layers_of"  # the preset whose layers a hybrid has, a column that readings fill
OF_HYBRIDS = (
    *("pattern", *OF_MAMBA, "head_width", "norm", "activation", "positions", "biases"),
    *("shared_ffn", "router", "router_scale", "router_bias", "balance_loss"),
)


def own_fields(run: PublishedRun) -> dict[str, Any]:
    """The model's fields that columns of these names give; of a hybrid those of the preset that the
    row's layers are like."""
    given = {key: run.whole(key) for key in COLUMNS if run.text(key)}
    if not run.text(LAYERS_OF):
        return given
    hybrid = find_model(run.text(LAYERS_OF))
    return {key: getattr(hybrid, key) for key in OF_HYBRIDS} | given


def expert_words(run: PublishedRun, x: int) -> dict[str, Any]:
    """The plan's words on experts, whose matrices are split over x unless `etp` is 1."""
    expert, over_x = run.whole("ep") or 1, run.whole("etp") or 1
    if expert == 1:
        return {}
    return {"expert": expert} | ({"expert_tensor": 1} if x > 1 and over_x == 1 else {})
