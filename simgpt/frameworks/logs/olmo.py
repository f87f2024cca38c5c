"""The job of OLMo, by the configuration that it prints; of OLMo-core none is read.

Source: allenai/OLMo@59a53e3f, olmo/config.py (TrainConfig, ModelConfig, FSDPConfig, whose
`mlp_hidden_size` is the width of SwiGLU's two halves together) and scripts/train.py
(`Configuration:`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.imported_job import ImportedJob, Instead, checked, in_place, job_of_fields
from simgpt.frameworks.logs.nanotron import count_of, part_of, table_of
from simgpt.frameworks.reading import Remark

NAME = "OLMo"
EAGER, COMPILED = "fsdp-eager", "fsdp"
VOCABULARIES = ("embedding_size", "vocab_size")  # padded, and not
NORMS = {"default": "layernorm", "low_precision": "layernorm", "rms": "rmsnorm"}
ZERO = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}


def olmo_job(
    config: Mapping[str, Any],
    origin: str,
    model: str | None,
    devices: int | None,
    instead: Instead,
) -> ImportedJob:
    """The job of a printed configuration; `model` and `devices` are the user's. A
    FrameworkError says what it lacks."""
    refused: list[Remark] = []
    fields: dict[str, Any] = _of_model(table_of(config, "model", origin), origin, refused)
    fields["mbs"] = count_of(config, "device_train_microbatch_size", origin)
    fields["batch"] = count_of(config, "global_train_batch_size", origin)
    fields |= _of_plan(config, refused)
    job = job_of_fields(
        fields,
        frameworks=(NAME,),
        stack=COMPILED if config.get("compile") else EAGER,
        devices=devices,
        model=model,
        changed={},
        remarks=((), tuple(refused), ()),
        settings=len(config),
    )
    return checked(in_place(job, instead))


def _of_model(own: Mapping[str, Any], origin: str, refused: list[Remark]) -> dict[str, Any]:
    hidden = count_of(own, "d_model", origin)
    if own.get("mlp_hidden_size") is None:
        wide = hidden * count_of(own, "mlp_ratio", origin)
    else:
        wide = count_of(own, "mlp_hidden_size", origin)
    gated = str(own.get("activation_type", "swiglu")).endswith("swiglu")
    norm = str(own.get("layer_norm_type", "default")).rpartition(".")[2]
    if norm not in NORMS:
        refused.append(Remark("layer_norm_type", norm, f"known: {', '.join(NORMS)}"))
    fields = {
        "layers": count_of(own, "n_layers", origin),
        "hidden": hidden,
        "heads": count_of(own, "n_heads", origin),
        "ffn": wide // 2 if gated else wide,
        "activation": "swiglu" if gated else "gelu",
        "sequence": count_of(own, "max_sequence_length", origin),
        "vocab": count_of(own, VOCABULARIES[own.get(VOCABULARIES[0]) is None], origin),
        "tied": bool(own.get("weight_tying", True)),
        "biases": bool(own.get("include_bias", True)),
        "norm": NORMS.get(norm, "layernorm"),
        "positions": "rope" if own.get("rope") else "alibi" if own.get("alibi") else "learned",
        "dropout": own.get("residual_dropout", 0.1),
    }
    if own.get("n_kv_heads") is not None:
        fields["kv_heads"] = count_of(own, "n_kv_heads", origin)
    elif own.get("multi_query_attention"):
        fields["kv_heads"] = 1
    return fields


def _of_plan(config: Mapping[str, Any], refused: list[Remark]) -> dict[str, Any]:
    sharding = part_of(config, "fsdp")
    strategy = str(sharding.get("sharding_strategy", "FULL_SHARD")).rpartition(".")[2]
    if str(config.get("distributed_strategy", "fsdp")).endswith("ddp"):
        strategy = "NO_SHARD"
    if strategy not in ZERO:
        refused.append(Remark("sharding_strategy", strategy, f"known: {', '.join(ZERO)}"))
    kept = str(config.get("activation_checkpointing") or "none").rpartition(".")[2]
    if kept not in ("none", "whole_layer"):
        why = "recomputation of all layers or of none is supported"
        refused.append(Remark("activation_checkpointing", kept, why))
    halves = str(sharding.get("precision", "pure")).rpartition(".")[2] == "pure"
    return {
        "zero": ZERO.get(strategy, 3),
        "gradients": "bf16" if halves else "fp32",
        "recompute": "full" if kept == "whole_layer" else "none",
        **({"precision": "fp32"} if config.get("precision") == "fp32" else {}),
    }
