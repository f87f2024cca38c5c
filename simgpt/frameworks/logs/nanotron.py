"""The job of nanotron, by the configuration that it prints.

Source: huggingface/nanotron@2411b022, src/nanotron/config/config.py, parallelism_config.py and
models_config.py (LlamaConfig and Qwen2Config, whose names are those of Hugging Face).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.imported_job import (
    ImportedJob,
    Instead,
    checked,
    in_place,
    job_of_fields,
    spelled,
)
from simgpt.frameworks.reading import FrameworkError, Remark
from workload.descriptions.hugging_face import model_from_config

NAME = "nanotron"
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
SIZES = {"pp": "pp", "tp": "tp", "context_parallel_size": "cp"}


def nanotron_job(
    config: Mapping[str, Any], origin: str, model: str | None, instead: Instead
) -> ImportedJob:
    """The job of a printed configuration; `model` is the user's. A FrameworkError says what
    the configuration lacks."""
    parallelism, tokens = (
        table_of(config, "parallelism", origin),
        table_of(config, "tokens", origin),
    )
    fields: dict[str, Any] = {
        name: count_of(parallelism, key, origin)
        for key, name in SIZES.items()
        if key in parallelism
    }
    dp = count_of(parallelism, "dp", origin)
    fields["mbs"] = count_of(tokens, "micro_batch_size", origin)
    fields["sequence"] = count_of(tokens, "sequence_length", origin)
    steps = count_of(tokens, "batch_accumulation_per_replica", origin)
    fields["batch"] = fields["mbs"] * steps * dp
    fields |= _of_plan(config, parallelism, fields)
    model, changed = _model(config, fields["sequence"], origin) if model is None else (model, {})
    devices = dp * fields["pp"] * fields["tp"] * fields.get("cp", 1)
    refused: tuple[Remark, ...] = ()
    if parallelism.get("expert_parallel_size", 1) != 1:
        why = "experts of nanotron are not modelled"
        size = str(parallelism["expert_parallel_size"])
        refused = (Remark("expert_parallel_size", size, why),)
    job = job_of_fields(
        fields,
        frameworks=(NAME,),
        stack=NAME,
        devices=devices,
        model=model,
        changed=changed,
        remarks=((), refused, ()),
        settings=len(config),
    )
    return checked(in_place(job, instead))


def _of_plan(
    config: Mapping[str, Any], parallelism: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    optimizer = part_of(config, "optimizer")
    fields: dict[str, Any] = {"zero": optimizer.get("zero_stage", 0)}
    fields["gradients"] = "fp32" if optimizer.get("accumulate_grad_in_fp32", True) else "bf16"
    if sizes["tp"] > 1:
        mode = str(parallelism.get("tp_mode", "")).lower()
        fields["sp"] = mode.endswith("reduce_scatter")
    if sizes["pp"] > 1:
        engine = str(parallelism.get("pp_engine", "")).lower()
        waits = "afab" in engine or "allforwardallbackward" in engine
        fields["schedule"] = "gpipe" if waits else "1f1b"
    fields["recompute"] = "full" if parallelism.get("recompute_layer") else "none"
    dtype = str(part_of(config, "model").get("dtype", "bfloat16"))
    if dtype.endswith("float32"):
        fields["precision"] = "fp32"
    return fields


def _model(
    config: Mapping[str, Any], sequence: int, origin: str
) -> tuple[str | None, dict[str, Any]]:
    """The model as MODEL and `--model-set` have it."""
    own = part_of(config, "model").get("model_config")
    if not isinstance(own, Mapping) or "hidden_size" not in own:
        return None, {}
    kind = LLAMA if own.get("is_llama_config") else QWEN
    known = {key: value for key, value in own.items() if value is not None}
    gpt = model_from_config({**known, **kind}, origin, name="").gpt
    model, changed = spelled(gpt)
    return model, {**changed, "sequence": sequence}


def table_of(config: Mapping[str, Any], name: str, origin: str) -> Mapping[str, Any]:
    """A table of a printed configuration; a FrameworkError says that it is lacking."""
    table = config.get(name)
    if not isinstance(table, Mapping):
        raise FrameworkError(f"{origin}: the printed configuration has no {name}")
    return table


def part_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a printed configuration; an empty one where there is none."""
    table = config.get(name)
    return table if isinstance(table, Mapping) else {}


def count_of(table: Mapping[str, Any], name: str, origin: str) -> int:
    """A whole number above 0 of a table; a FrameworkError says that it is none."""
    value = table.get(name)
    if type(value) is not int or not 0 < value < 10**9:
        raise FrameworkError(f"{origin}: {name} = {value!r} is not a whole number above 0")
    return value
