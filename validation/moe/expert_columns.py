"""The columns of a run that mixtures of experts and latent attention add: fields of a model, words
of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validation.published.runs import PublishedRun
from workload.passes.table import EVERY

OF_EXPERTS = ("experts", "topk", "expert_ffn", "shared_ffn", "dense_layers", "expert_every")
OF_LATENT = ("q_rank", "kv_rank", "rope_width", "value_width")
COLUMNS = (*OF_EXPERTS, *OF_LATENT, "head_width")


def own_fields(run: PublishedRun) -> dict[str, Any]:
    """The model's fields that columns of these names give."""
    return {key: run.whole(key) for key in COLUMNS if run.text(key)}


def expert_words(run: PublishedRun, x: int) -> dict[str, Any]:
    """The plan's words on experts, whose matrices are split over x unless `etp` is 1."""
    expert, over_x = run.whole("ep") or 1, run.whole("etp") or 1
    if expert == 1:
        return {}
    return {"expert": expert} | ({"expert_tensor": 1} if x > 1 and over_x == 1 else {})


def overlap_words(run: PublishedRun, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The overlaps of a plan with those of exchanges of experts' rows that its row names."""
    names = run.text("overlap").split("+") if run.text("overlap") else []
    given = plan.get("overlap", ())
    return {"overlap": [name for name in EVERY if name in given or name in names]} if names else {}
