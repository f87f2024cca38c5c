"""The columns of a run that mixtures of experts, latent attention and hybrids add: fields of a
model, words of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from validation.published.runs import PublishedRun
from workload.gpt import find_model
from workload.model.fields import KEYS
from workload.overlaps import EVERY

OF_EXPERTS = ("experts", "topk", "expert_ffn", "shared_ffn", "dense_layers", "expert_every")
OF_GROUPS = ("router_groups", "router_topk_groups")
OF_LATENT = ("q_rank", "kv_rank", "rope_width", "value_width")
OF_WINDOWS = ("window", "global_every")
COLUMNS = (*OF_EXPERTS, *OF_GROUPS, *OF_LATENT, *OF_WINDOWS, "head_width", "mtp_layers")
SWITCHES = ("sinks", "biases")
CLAMPED, SCALING = "clamped", "rope_scaling"
REALS = ("capacity", "balance_loss")
LAST_CHUNK, SHORT, RECIPE = "last_chunk", "short", "recipe"
LAYERS_OF = "layers_of"  # the preset whose layers a hybrid has, a column that readings fill
OF_HYBRIDS = (
    *("pattern", *(key for key, each in KEYS.items() if each.part == "mamba2")),
    *("head_width", "norm", "activation", "positions", "biases"),
    *("shared_ffn", "expert_latent", "router", "router_scale", "router_bias", "balance_loss"),
    *("mtp_layers", "mtp_pattern", "mtp_shared", "mtp_loss"),
)


def own_fields(run: PublishedRun) -> dict[str, Any]:
    """The model's fields that columns of these names give; of a hybrid those of the preset that the
    row's layers are like."""
    given: dict[str, Any] = {key: run.whole(key) for key in COLUMNS if run.text(key)}
    given |= {key: run.text(key) == "yes" for key in SWITCHES if run.text(key)}
    given |= {key: run.real(key) for key in REALS if run.text(key)}
    given |= {SCALING: run.text(SCALING)} if run.text(SCALING) else {}
    if run.whole("kv_rank"):  # which has neither other positions nor biases (2405.04434, 2.1)
        given |= {"positions": "rope", "biases": False}
    if run.text(CLAMPED) == "yes":
        given["activation"] = "clamped_swiglu"
    if not run.text(LAYERS_OF):
        return given
    hybrid = find_model(run.text(LAYERS_OF))
    return {key: hybrid.value(key) for key in OF_HYBRIDS} | given


def expert_words(run: PublishedRun, x: int) -> dict[str, Any]:
    """The plan's words on experts, whose matrices are split over `etp` ranks: one, if not told."""
    expert, within = run.whole("ep") or 1, run.whole("etp") or 1
    if expert == 1:
        return {}
    gathers = run.text("dispatcher").lower().replace("_", "").replace("-", "") == "allgather"
    given = {"ep": expert} | ({"dispatcher": "all_gather"} if gathers else {})
    return given | ({"etp": within} if within != x else {})


def recipe_words(run: PublishedRun) -> dict[str, Any]:
    """The plan's words that a recipe gives: of its precision, and of layers that do not divide.

    A recipe's layers of each chunk count where the row has as many chunks. With a short last chunk
    all others have as many layers as would hold the model's, and it has what is left, since it has
    the classifier too.
    """
    found: dict[str, Any] = {RECIPE: run.text(RECIPE)} if run.text(RECIPE) else {}
    layers, chunks = run.whole("layers") or 0, (run.whole("pp") or 1) * (run.whole("vpp") or 1)
    told = tuple(int(each) for each in run.text("stage_layers").split(",") if each)
    if len(told) == chunks and sum(told) == layers and min(told) > 0:
        return found | {"stage_layers": told}
    each = math.ceil(layers / chunks)
    if run.text(LAST_CHUNK) == SHORT and 0 < (left := layers - each * (chunks - 1)) < each:
        found["stage_layers"] = (*(each,) * (chunks - 1), left)
    return found


def overlap_words(run: PublishedRun, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The overlaps of a plan with those of exchanges of experts' rows that its row names."""
    names = run.text("overlap").split("+") if run.text("overlap") else []
    given = plan.get("overlap", ())
    return {"overlap": [name for name in EVERY if name in given or name in names]} if names else {}
