"""A switch that is off switches off the settings that belong to it, wherever both stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import (
    BRIDGE,
    DEEPSPEED,
    MEGATRON,
    NEMO,
    TORCHTITAN,
    Described,
)
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import imported, job_from
from simgpt.frameworks.reading import FrameworkError
from tests.messages import names

MODEL = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
Z, TITAN = "zero_optimization.", {"model.name": "llama3", "model.flavor": "8B"}


def asked(framework: str, settings: Mapping[str, Any]) -> ImportedJob:
    """The question of settings beside those of a small model, or of Llama 3.1 8B."""
    model = {f"model.{key}": value for key, value in {**MODEL, "seq_length": 64}.items()}
    beside: dict[str, Any] = {
        MEGATRON: {key.replace("_", "-"): each for key, each in MODEL.items()} | {"bf16": True},
        NEMO: model | {"trainer.precision": "bf16"},
        BRIDGE: model | {"mixed_precision": "bf16_mixed"},
        TORCHTITAN: TITAN,
        DEEPSPEED: {"bf16.enabled": True},
    }
    given = "llama-3.1-8b" if framework == DEEPSPEED else None
    own = beside[framework]
    if framework == MEGATRON:
        own = own | {"seq-length": 64}
    described = Described(framework, {**own, **settings})
    return job_from([described], devices=16, model=given, changed={})


OFF: list[tuple[str, str, object, dict[str, Any]]] = [
    (NEMO, "model.fp8", False, {"model.fp8_hybrid": True, "model.fp8_amax_history_len": 1024}),
    (NEMO, "model.fp8", None, {"model.fp8_e4m3": True, "model.fp8_params": True}),
    (NEMO, "model.cpu_offloading", False, {"model.cpu_offloading_num_layers": 11}),
    (NEMO, "model.activations_checkpoint_granularity", None,
     {"model.activations_checkpoint_method": "uniform",
      "model.activations_checkpoint_num_layers": 2}),
    (NEMO, "model.optim.name", "fused_adam", {"model.optim.overlap_grad_sync": True}),
    (NEMO, "model.ub_tp_comm_overlap", False, {"model.ub_tp_comm_overlap_cfg.qkv.num_sm": 4}),
    (NEMO, "model.nsys_profile.enabled", False, {"model.nsys_profile.start_step": 2}),
    (BRIDGE, "model.fp8", None, {"model.fp8_recipe": "mxfp8", "model.fp8_param_gather": True,
                                 "model.first_last_layers_bf16": True}),
    (BRIDGE, "optimizer.use_precision_aware_optimizer", False,
     {"optimizer.exp_avg_dtype": "bf16", "optimizer.main_grads_dtype": "bf16"}),
    (BRIDGE, "ddp.use_megatron_fsdp", False,
     {"ddp.data_parallel_sharding_strategy": "optim_grads_params"}),
    (MEGATRON, "fp8-format", "none", {"fp8-param-gather": True, "fp8-recipe": "blockwise"}),
    (MEGATRON, "tensor-model-parallel-size", 1,
     {"sequence-parallel": True, "tp-comm-overlap": True}),
    (MEGATRON, "context-parallel-size", 1, {"cp-comm-type": "a2a"}),
    (MEGATRON, "pipeline-model-parallel-size", 1,
     {"num-virtual-stages-per-pipeline-rank": 2, "wgrad-deferral-limit": 50,
      "microbatch-group-size-per-virtual-pipeline-stage": 4}),
    (MEGATRON, "use-distributed-optimizer", False, {"num-distributed-optimizer-instances": 2}),
    (MEGATRON, "multi-latent-attention", False, {"q-lora-rank": 8, "kv-lora-rank": 8}),
    (MEGATRON, "window-size", None, {"window-attn-skip-freq": 2}),
    (TORCHTITAN, "model.converters", [],
     {"float8.enable_fsdp_float8_all_gather": True, "float8.recipe_name": "rowwise"}),
    (TORCHTITAN, "compile.enable", False, {"compile.components": ["model"]}),
    (TORCHTITAN, "activation_checkpoint.mode", "none",
     {"activation_checkpoint.selective_ac_option": "2"}),
    (TORCHTITAN, "parallelism.pipeline_parallel_degree", 1,
     {"parallelism.pipeline_parallel_schedule": "ZBVZeroBubble",
      "parallelism.pipeline_parallel_schedule_csv": "a.csv"}),
    (TORCHTITAN, "parallelism.tensor_parallel_degree", 1,
     {"parallelism.enable_async_tensor_parallel": True}),
    (DEEPSPEED, "torch_autocast.enabled", False, {"torch_autocast.dtype": "fp16"}),
    (DEEPSPEED, "amp.enabled", "auto", {"amp.opt_level": "O2"}),
    (DEEPSPEED, "compression_training.layer_reduction.enabled", False,
     {"compression_training.layer_reduction.keep_number_layer": 5}),
    (DEEPSPEED, Z + "stage", 0,
     {Z + "overlap_comm": True, Z + "offload_optimizer.device": "cpu"}),
    (DEEPSPEED, Z + "stage", 2,
     {Z + "zero_hpz_partition_size": 8, Z + "offload_param.device": "cpu",
      Z + "zero_quantized_weights": True}),
    (DEEPSPEED, Z + "offload_optimizer.device", "none",
     {Z + "offload_optimizer.pin_memory": True}),
]  # fmt: skip


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("framework", "switch", "value", "belonging"), OFF)
def test_what_belongs_to_a_switch_that_is_off_changes_nothing(
    framework: str, switch: str, value: object, belonging: dict[str, Any], *, last: bool
) -> None:
    off = {switch: value}
    alone = asked(framework, off)
    both = asked(framework, {**belonging, **off} if last else {**off, **belonging})
    assert both.plan == alone.plan
    assert (both.refused, both.changes) == ((), alone.changes)
    count = len(both.without_effect) - len(alone.without_effect)
    assert count == len(belonging)


@pytest.mark.parametrize(
    ("framework", "settings", "key", "value"),
    [
        (NEMO, {"model.fp8": True, "model.fp8_hybrid": True}, "precision", "fp8"),
        (NEMO, {"model.fp8_hybrid": True, "model.fp8": True}, "precision", "fp8"),
        (BRIDGE, {"model.fp8": "hybrid", "model.fp8_recipe": "tensorwise"}, "recipe",
         "fp8-tensorwise"),
        (TORCHTITAN, {"model.converters": ["float8"]}, "precision", "fp8"),
        (DEEPSPEED, {Z + "stage": 3, Z + "mics_shard_size": 8}, "shard", 8),
        (NEMO, {"model.optim.name": "distributed_fused_adam",
                "model.optim.grad_sync_dtype": "bf16"}, "gradients", "bf16"),
    ],
)  # fmt: skip
def test_what_belongs_to_a_switch_that_is_on_counts(
    framework: str, settings: dict[str, Any], key: str, value: object
) -> None:
    assert asked(framework, settings).plan[key] == value


def test_dtypes_that_are_what_is_assumed_are_not_said_to_differ() -> None:
    own = {"optimizer.use_precision_aware_optimizer": True, "ddp.use_distributed_optimizer": True}
    dtypes = {"optimizer.exp_avg_dtype": "torch.float32", "optimizer.exp_avg_sq_dtype": "bf16"}
    said = [each.name for each in asked(BRIDGE, {**own, **dtypes}).changes]
    assert said == ["optimizer.exp_avg_sq_dtype"]


def test_a_switch_whose_value_is_a_variable_is_not_off() -> None:
    """It is named instead of what belongs to it being left out."""
    settings = {"context-parallel-size": "$CP", "cp-comm-type": "no such kind"}
    with pytest.raises(FrameworkError, check=names("--define CP=VALUE")):
        asked(MEGATRON, settings)


@pytest.mark.parametrize("word", ["False", "false", "FALSE", "null", "no", "off", ""])
def test_a_switch_of_a_yaml_is_off_however_it_is_spelled(word: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    lines = [f"  {key}: {value}" for key, value in {**MODEL, "encoder_seq_length": 64}.items()]
    lines += ["  micro_batch_size: 1", f"  fp8: {word}", "  fp8_hybrid: True"]
    path.write_text("trainer: {precision: bf16}\nmodel:\n" + "\n".join(lines), encoding="utf-8")
    assert "precision" not in imported([path]).plan
    path.write_text(path.read_text(encoding="utf-8").replace(f"fp8: {word}\n", "fp8: True\n"))
    assert imported([path]).plan["precision"] == "fp8"
