"""What a recipe of Megatron-Bridge asks for, as a plan and its software: one row of facts.

Sources: the fields of Megatron-Core's TransformerConfig, DistributedDataParallelConfig and
OptimizerConfig (NVIDIA/Megatron-LM core_v0.14.0 to core_v0.16.0) and of Megatron-Bridge's
MixedPrecisionConfig, which sets those of the others when training begins (src/megatron/bridge/
training/mixed_precision.py, `setup`, of v0.1.0rc4 to v0.6.0).
"""

from __future__ import annotations

import re
from typing import Any

from simgpt.frameworks.recipe_code.core_defaults import CORE_DEFAULTS
from simgpt.frameworks.recipe_code.recipe import NEEDED, SIZES, Recipe, plain
from workload.pipeline.layout import uneven_stages

LAYOUT = "model.pipeline_model_parallel_layout"
ENDS = ("first", "last")
SCALINGS = {
    **{"delayed": "fp8_ds", "tensorwise": "fp8_cs", "mxfp8": "fp8_mx", "blockwise": "fp8_ss"},
}
NARROW = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "uint8": "fp8",
    "int16": "int16",
}
COLUMNS = (
    *("model", "task", "gpu", "precision", "variant", "devices", *SIZES),
    *(
        "mtp",
        "stage_layers",
        "graphs",
        "dispatcher",
        "overlap",
        "tp_overlap",
        "recompute",
        "offloaded",
    ),
    *("gradients", "main_grads", "moments", "optimizer", "sharding", "capacity", "unresolved"),
)


def facts(recipe: Recipe) -> dict[str, str]:
    """A recipe as texts under `COLUMNS`, empty where it does not say or cannot be told; what
    cannot be told and bears on one of them is named under `unresolved`, with its place."""
    key = recipe.key
    found: dict[str, Any] = {
        **{"model": key.model, "task": key.task, "gpu": key.gpu, "precision": _precision(recipe)},
        **{"variant": key.variant, "devices": recipe.devices},
        **{column: _whole(recipe, name) for column, name in SIZES.items()},
        "mtp": _whole(recipe, "model.mtp_num_layers"),
        "stage_layers": _stage_layers(recipe.get(LAYOUT)) or _uneven(recipe),
        "graphs": _graphs(recipe),
        "dispatcher": _dispatcher(recipe),
        "overlap": _overlap(recipe),
        "tp_overlap": _switch(recipe, "comm_overlap.tp_comm_overlap"),
        "recompute": recomputation(recipe),
        "offloaded": recipe.get("model.cpu_offloading_num_layers") or "",
        "gradients": _gradients(recipe),
        **_optimizer(recipe),
        "sharding": "fsdp" if _is_fsdp(recipe) else "optimizer",
        "capacity": recipe.get("model.moe_expert_capacity_factor") or "",
        "unresolved": " ".join(_unresolved(recipe)),
    }
    return {column: str(found[column]) for column in COLUMNS}


def _whole(recipe: Recipe, name: str) -> str:
    value = recipe.get(name)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _switch(recipe: Recipe, name: str) -> str:
    value = recipe.get(name)
    return "" if value is None else "yes" if value else "no"


def _graphs(recipe: Recipe) -> str:
    """What CUDA graphs capture: parts of layers, `full_iteration`, `layer` or `none`; an empty
    scope is whole layers. Later releases name the parts as modules."""
    if recipe.get("model.enable_cuda_graph"):
        return "layer"
    implementation = recipe.get("model.cuda_graph_impl")
    scope = recipe.get("model.cuda_graph_modules") or recipe.get("model.cuda_graph_scope") or []
    parts = scope.split(",") if isinstance(scope, str) else list(scope)
    if implementation == "full_iteration" or "full_iteration" in parts:
        return "full_iteration"
    if implementation in (None, "none"):
        return "" if recipe.is_untold("model.cuda_graph_impl") else "none"
    scopes = ("model.cuda_graph_modules", "model.cuda_graph_scope")
    if not parts and any(map(recipe.is_untold, scopes)):
        return ""
    parts = [] if parts == ["full"] else parts
    return "+".join(map(str, parts)) or "layer"


def _dispatcher(recipe: Recipe) -> str:
    """How tokens reach their experts: alltoall, allgather, deepep or hybridep; "" without any."""
    if recipe.get("model.num_moe_experts", "") is None:
        return ""
    kind = recipe.get("model.moe_token_dispatcher_type")
    if kind == "flex" and recipe.get("model.moe_enable_deepep"):  # of v0.1
        return "deepep"
    if kind == "flex":
        return str(recipe.get("model.moe_flex_dispatcher_backend") or "")
    return str(kind or "")


def _overlap(recipe: Recipe) -> str:
    names = {
        "a2a": "comm_overlap.overlap_moe_expert_parallel_comm",
        "wgrad": "comm_overlap.delay_wgrad_compute",
    }
    return "+".join(word for word, name in names.items() if recipe.get(name)) or "none"


def recomputation(recipe: Recipe) -> str:
    """What runs again: none, full, full:LAYERS of each chunk, or the modules joined by +, which
    count only where the granularity is selective (transformer_config.py, __post_init__)."""
    granularity = recipe.get("model.recompute_granularity")
    if granularity == "full":
        layers = recipe.get("model.recompute_num_layers")
        block = recipe.get("model.recompute_method") == "block"
        return f"full:{layers}" if block and layers else "full"
    if granularity != "selective":
        return "" if recipe.is_untold("model.recompute_granularity") else "none"
    modules = recipe.get("model.recompute_modules")
    if modules is None:
        return "core_attn"
    return "+".join(modules) or "none"


def _is_fsdp(recipe: Recipe) -> bool:
    """Whether Megatron-FSDP shards weights too, by Megatron-Core's switch, or by NeMo's."""
    switches = ("ddp.use_megatron_fsdp", "ddp.use_custom_fsdp")
    return any(map(recipe.get, switches)) or recipe.get("strategy.fsdp") == "megatron"


def _precision(recipe: Recipe) -> str:
    """The key's precision; where that is fp8 alone, with the scaling that the recipe has, which is
    delayed where it names none (transformer_config.py, fp8_recipe)."""
    own = recipe.key.precision
    if own != "fp8":
        return own
    return SCALINGS.get(str(recipe.get("mixed_precision.fp8_recipe") or "delayed"), own)


def _uneven(recipe: Recipe) -> str:
    """The layers of each chunk where the first or the last stage has its own number."""
    names = ("num_layers", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    layers, pp, chunks = (recipe.get(f"model.{name}") for name in names)
    first, last = (recipe.get(f"model.num_layers_in_{end}_pipeline_stage") for end in ENDS)
    told = isinstance(layers, int) and isinstance(pp, int) and pp > 1
    if not told or (first is None and last is None):
        return ""
    return ",".join(map(str, uneven_stages(layers, pp, chunks or 1, first, last)))


def _gradients(recipe: Recipe) -> str:
    """The dtype in which gradients are summed over ranks: the precision's word counts."""
    for name in ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32"):
        if isinstance(value := recipe.get(name), bool):
            return "fp32" if value else "bf16"
    return ""


def _optimizer(recipe: Recipe) -> dict[str, str]:
    """The optimizer, and the dtypes of main gradients and of moments, which are fp32 unless it is
    the one that is aware of precisions (optimizer_config.py, __post_init__)."""
    names = ("use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype")
    aware, *dtypes = (_of_optimizer(recipe, name) for name in names)
    grads, moments = (NARROW.get(str(each), "") for each in dtypes)
    if aware is not True:
        grads, moments = ("fp32", "fp32") if aware is False else ("", "")
    return {
        "main_grads": grads,
        "moments": moments,
        "optimizer": str(recipe.get("optimizer.optimizer") or ""),
    }


def _of_optimizer(recipe: Recipe, name: str) -> Any:
    """A setting of the optimizer, Megatron-Core's where unset; None if unresolved."""
    full = f"optimizer.{name}"
    if recipe.is_untold(full) or any(each in recipe.settings for each in recipe.own_names(full)):
        return recipe.get(full)
    return plain(CORE_DEFAULTS["OptimizerConfig"][name])


def _stage_layers(layout: Any) -> str:
    """The decoder layers of each chunk of a pipeline's layout: lists of lists, or Megatron-Core's
    words, as Et*3|(tt|)*14mL (core/transformer/pipeline_parallel_layer_layout.py).

    >>> _stage_layers("Et|(tt|)*2mL")
    '1,2,2,0'
    """
    if isinstance(layout, str):
        chunks = _spread(layout)
        return ",".join(str(chunk.count("t")) for chunk in chunks.split("|")) if chunks else ""
    if not isinstance(layout, list) or not all(isinstance(each, list) for each in layout):
        return ""
    return ",".join(str(each.count("decoder")) for each in layout)


def _spread(text: str) -> str:
    """A layout's word without brackets and repetitions; "" where it is too long or not such."""
    if len(text) > 1000:
        return ""
    text = text.replace(",", "")
    for _ in range(20):
        found = re.search(r"\(([^()]*)\)\*(\d{1,3})|([a-zA-Z])\*(\d{1,3})", text)
        if not found:
            break
        part, count = (found[1], found[2]) if found[2] else (found[3], found[4])
        text = text[: found.start()] + part * int(count) + text[found.end() :]
        if len(text) > 10_000:
            return ""
    return text if re.fullmatch(r"[a-zA-Z|]+", text) else ""


def _unresolved(recipe: Recipe) -> list[str]:
    """Names and places of settings that a column would have; of a model without experts not those
    of its dispatcher."""
    dense = recipe.get("model.num_moe_experts", "") is None
    names = [name for name in NEEDED if not (dense and name.startswith("model.moe_"))]
    own = {each for name in names for each in recipe.own_names(name)}
    return sorted(f"{each.name}@{each.place}" for each in recipe.unresolved if each.name in own)
