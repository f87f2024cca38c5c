"""What torchtitan, DeepSpeed and AxoNN do where a file leaves a key out, by their source.

`tests/simgpt/frameworks/test_megatron_defaults.py` has Megatron-LM's. Sources: pytorch/torchtitan@
238fa99 (`J` is torchtitan/config/job_config.py), deepspeedai/DeepSpeed@edaa722, axonn-ai/axonn@
660a224.
"""

from __future__ import annotations

from typing import Any

import pytest

from simgpt.frameworks.files import AXONN, DEEPSPEED, TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from workload.plan import Plan

LLAMA, EXPERTS = ("llama3", "8B"), ("qwen3", "30B-A3B")
P, T, AC, E, Z = (
    *("parallelism.", "training.", "activation_checkpoint."),
    *("experimental.", "zero_optimization."),
)
TWO = {P + "tensor_parallel_degree": 2}
STAGES = {P + "pipeline_parallel_degree": 2}
CONTEXT = {P + "context_parallel_degree": 4}
OLDER = {E + "pipeline_parallel_degree": 2}


def titan(
    settings: dict[str, Any], model: tuple[str, str] = LLAMA, devices: int | None = 64
) -> ImportedJob:
    own = {"model.name": model[0], "model.flavor": model[1], **settings}
    return job_from([Described(TORCHTITAN, own)], devices=devices, changed={})


def deepspeed(settings: dict[str, Any], devices: int | None = 64) -> ImportedJob:
    own = [Described(DEEPSPEED, settings)]
    return job_from(own, devices=devices, model="llama-3.1-8b", changed={})


def job(question: ImportedJob) -> Plan:
    assert question.gpt is not None
    stack = load_stack(question.question.stack)
    return job_of(
        question.gpt,
        dict(question.plan),
        stack,
        devices=question.question.devices,
        batch=question.question.batch,
    ).plan


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # J, Parallelism: FSDP over all ranks (-1), one copy, and no other axis.
        ({}, {"zero": 3, "shard": None, "tp": None, "pp": None, "cp": None, "ep": None}),
        (TWO, {"zero": 3, "sp": True}),
        # distributed/fsdp.py: under a pipeline weights stay whole by default, else they do not.
        ({}, {"reshard": None}),
        (STAGES, {"reshard": False}),
        (STAGES | {P + "fsdp_reshard_after_forward": "always"}, {"reshard": None}),
        # J: 1F1B, where the embedding and the classifier count as a layer each; two virtual stages
        # where a schedule has several.
        (STAGES, {"schedule": None, "ends_as_layers": True, "vpp": None}),
        (STAGES | {P + "pipeline_parallel_schedule": "Interleaved1F1B"}, {"vpp": 2}),
        # J, ActivationCheckpoint: every second layer runs again, 16 of 32 or 8 of 16 in a stage.
        ({}, {"recompute": "full:16"}),
        (STAGES, {"recompute": "full:8"}),
        ({AC + "mode": "full"}, {"recompute": "full"}),
        # J, Training: bf16 parameters, fp32 sums; nothing on the host.
        ({}, {"precision": None, "gradients": "fp32", "offload": None, "optimizer": None}),
        ({T + "enable_cpu_offload": True}, {"offload": "parameters"}),
        ({"float8.recipe_name": "rowwise"}, {"precision": None}),
        # One rank of data and none of context is not sharded: distributed/parallel_dims.py.
        ({P + "data_parallel_replicate_degree": 64}, {"zero": 0, "shard": None}),
        ({P + "data_parallel_replicate_degree": 8}, {"zero": 3, "shard": 8}),
        # With context FSDP shards over its ranks, of 64 / 4 = 16 of data in 2 copies.
        (CONTEXT, {"zero": 3, "cp": 4, "shard": None}),
        (CONTEXT | {P + "data_parallel_replicate_degree": 2}, {"zero": 3, "shard": 8}),
        (CONTEXT | {P + "data_parallel_replicate_degree": 16}, {"zero": 3, "shard": 1}),
    ],
)
def test_a_key_that_is_left_out_is_torchtitans_default(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    question = titan(settings | {T + "local_batch_size": 16})
    assert question.refused == ()
    assert {key: question.plan.get(key) for key in expected} == expected


def test_keys_of_context_are_gathered_by_default() -> None:
    """J, context_parallel_rotate_method: allgather."""
    assert job(titan(CONTEXT)).context.kind == "all_gather"
    ring = CONTEXT | {P + "context_parallel_rotate_method": "alltoall"}
    assert job(titan(ring)).context.kind == "ring"


@pytest.mark.parametrize(
    ("settings", "micro_batch", "batch"),
    [
        # J: 8 sequences a rank; global_batch_size is -1, one accumulation step of all ranks.
        ({}, 8, 8 * 64),
        ({T + "local_batch_size": 2}, 2, 2 * 64),
        # train.py, batch_degree: ranks of tensor, pipeline and context parallelism share sequences.
        (TWO | {T + "local_batch_size": 2}, 2, 2 * 32),
        (CONTEXT | {T + "local_batch_size": 2}, 2, 2 * 16),
        (CONTEXT | TWO | {T + "local_batch_size": 2}, 2, 2 * 8),
        # A pipeline splits a rank's sequences into micro-batches of one.
        (STAGES | {T + "local_batch_size": 16}, 1, 16 * 32),
        (STAGES | CONTEXT | {T + "local_batch_size": 16}, 1, 16 * 8),
        (STAGES | {T + "local_batch_size": 16, P + "pipeline_parallel_microbatch_size": 4},
         4, 16 * 32),
        # Until April 2025 into as many as there are chunks of all stages
        # (785c34c, torchtitan/distributed/pipeline.py, num_total_stages).
        (OLDER | {T + "batch_size": 16}, 8, 16 * 32),
        (OLDER | {T + "batch_size": 16, E + "pipeline_parallel_schedule": "Interleaved1F1B"},
         4, 16 * 32),
        (OLDER | {T + "batch_size": 16, E + "context_parallel_degree": 4}, 8, 16 * 8),
        # A batch that is said is made of accumulation steps.
        ({T + "local_batch_size": 2, T + "global_batch_size": 512}, 2, 512),
        (CONTEXT | {T + "local_batch_size": 2, T + "global_batch_size": 128}, 2, 128),
    ],
)  # fmt: skip
def test_sequences_of_torchtitans_ranks_are_shared_by_what_splits_no_batch(
    settings: dict[str, Any], micro_batch: int, batch: int
) -> None:
    question = titan(settings)
    assert (question.plan["mbs"], question.question.batch) == (micro_batch, batch)
    assert [each.name for each in question.changes if "batch" in each.name] == []


def test_devices_that_torchtitans_degrees_say_are_those_of_all_axes() -> None:
    """distributed/parallel_dims.py: copies x shards x context x tensor x pipeline."""
    degrees = {P + "data_parallel_shard_degree": 4, P + "data_parallel_replicate_degree": 2}
    assert titan(degrees, devices=None).question.devices == 8
    assert titan(degrees | CONTEXT | TWO | STAGES, devices=None).question.devices == 8 * 4 * 2 * 2
    question = titan(degrees | CONTEXT | {T + "local_batch_size": 2}, devices=None)
    assert (question.question.devices, question.question.batch) == (32, 16)


@pytest.mark.parametrize(
    ("settings", "stack"),
    [
        # J, Compile: off; of the model and the loss, where it is on. Blocks are compiled with the
        # model alone (models/llama3/infra/parallelize.py, model_compile_enabled).
        ({}, "torchtitan-eager"),
        ({"compile.enable": True}, "torchtitan"),
        ({"compile.enable": True, "compile.components": ["loss"]}, "torchtitan-eager"),
        ({"compile.enable": True, "compile.components": ["model"]}, "torchtitan"),
        ({"compile.enable": True, "compile.components": []}, "torchtitan-eager"),
        ({"compile.enable": False, "compile.components": ["model"]}, "torchtitan-eager"),
        ({T + "compile": True}, "torchtitan"),
    ],
)
def test_torchtitans_layers_are_compiled_where_the_model_is(
    settings: dict[str, Any], stack: str
) -> None:
    assert titan(settings).question.stack == stack


@pytest.mark.parametrize(
    ("settings", "expert", "within"),
    [
        ({}, None, None),
        ({P + "expert_parallel_degree": 8}, 8, None),
        # J, expert_tensor_parallel_degree: 1, so that tensor parallelism splits no expert.
        (TWO | {P + "expert_parallel_degree": 8}, 8, 1),
        (TWO | {P + "expert_parallel_degree": 8, P + "expert_tensor_parallel_degree": 2}, 8, None),
    ],
)
def test_torchtitans_experts_are_not_split_by_tensor_parallelism(
    settings: dict[str, Any], expert: int | None, within: int | None
) -> None:
    question = titan(settings, EXPERTS)
    assert question.refused == ()
    assert (question.plan.get("ep"), question.plan.get("etp")) == (expert, within)


def test_without_a_length_torchtitans_sequences_have_2048_tokens() -> None:
    """J, Training: seq_len."""
    assert titan({}).question.model_set == {"sequence": 2048}
    assert titan({T + "seq_len": 4096}).question.model_set == {"sequence": 4096}


FULL, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("settings", "micro_batch", "steps", "batch"),
    [
        # runtime/config.py, _set_batch_related_parameters, each of its branches, on 64 ranks.
        ({FULL: 512, MICRO: 2, STEPS: 4}, 2, 4, 512),
        ({FULL: 512, MICRO: 2}, 2, 4, 512),
        ({FULL: 512, STEPS: 4}, 2, 4, 512),
        ({MICRO: 2, STEPS: 16}, 2, 16, 2048),
        ({FULL: 512}, 8, 1, 512),
        ({MICRO: 2}, 2, 1, 128),
    ],
)
def test_each_pair_of_deepspeeds_sizes_says_the_others(
    settings: dict[str, Any], micro_batch: int, steps: int, batch: int
) -> None:
    question = deepspeed(settings)
    assert (question.refused, question.question.batch) == ((), batch)
    plan = job(question)
    assert (plan.mbs, plan.batch) == (micro_batch, batch)
    assert plan.batch // (plan.dp * plan.mbs) == steps


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # runtime/zero/config.py: stage 0; overlap_comm with stage 3 alone; no shards but all.
        ({}, {"zero": 0, "overlap": "none", "offload": None, "shard": None}),
        ({Z + "stage": 1}, {"zero": 1, "overlap": "none"}),
        ({Z + "stage": 2}, {"zero": 2, "overlap": "none"}),
        ({Z + "stage": 3}, {"zero": 3, "overlap": "ors+oag", "shard": None}),
        ({Z + "stage": 2, Z + "overlap_comm": True}, {"overlap": "ors+dp"}),
        # runtime/zero/offload_config.py: device none; the ratio is 1, all of the update.
        ({Z + "stage": 3, Z + "offload_optimizer.pin_memory": True}, {"offload": None}),
        ({Z + "stage": 3, Z + "offload_optimizer.device": "cpu"},
         {"offload": "update", "offload_share": None}),
        # runtime/engine.py, get_data_types: fp32 where no 16 bits are on, and gradients in the
        # dtype of the model. Behind no pipeline stage 0 in bf16 shards nothing (DDP_BFLOAT16).
        ({}, {"precision": "fp32", "gradients": None}),
        ({"bf16.enabled": True}, {"precision": None, "gradients": "bf16", "zero": 0}),
        ({"fp16.enabled": True}, {"precision": None, "gradients": "bf16"}),
        ({"bf16.enabled": False}, {"precision": "fp32"}),
    ],
)  # fmt: skip
def test_a_key_that_is_left_out_is_deepspeeds_default(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    question = deepspeed({MICRO: 1, **settings})
    assert question.refused == ()
    assert {key: question.plan.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("settings", "said", "refused"),
    [
        ({}, [], []),
        ({"optimizer.type": "AdamW"}, [], []),
        ({"optimizer.type": "Adam"}, [], []),
        ({"optimizer.type": "OneBitAdam"}, ["optimizer.type"], []),
        ({"optimizer.type": "Lamb"}, ["optimizer.type"], []),
        ({"bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True},
         ["bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"], []),
        ({"fp16.fp16_master_weights_and_grads": True},
         ["fp16.fp16_master_weights_and_grads"], []),
        ({"bf16.bf16_master_weights_and_grads": False}, [], []),
        # runtime/zenflow/zenflow_config.py: its section alone switches it on.
        ({Z + "stage": 2, Z + "zenflow.topk_ratio": 0.1, Z + "zenflow.update_interval": 4}, [],
         [Z + "zenflow.topk_ratio"]),
        ({Z + "stage": 0, Z + "zenflow.topk_ratio": 0.1}, [], []),
    ],
)  # fmt: skip
def test_what_of_deepspeeds_update_is_not_carried_is_said(
    settings: dict[str, Any], said: list[str], refused: list[str]
) -> None:
    beside = {MICRO: 1, "bf16.enabled": True, "fp16.enabled": False}
    if any(name.startswith("fp16") for name in settings):
        beside = {MICRO: 1, "fp16.enabled": True}
        said = ["fp16.enabled", *said]
    question = deepspeed(beside | settings)
    assert [each.name for each in question.changes] == said
    assert [each.name for each in question.refused] == refused
    assert question.unknown == ()


@pytest.mark.parametrize(
    ("grid", "given", "devices"),
    [
        # axonn/axonn.py, init: each degree is 1 by default, and their product is all ranks.
        ({"G_intra_r": 2, "G_data": 4}, None, 8),
        ({"G_intra_r": 2, "G_intra_c": 2, "G_intra_d": 2}, None, 8),
        ({"G_intra_r": 2, "G_data": 4}, 8, 8),
        ({"G_intra_r": 2}, 8, 8),
    ],
)
def test_degrees_that_axonns_grid_leaves_out_are_1_but_data_on_given_devices(
    grid: dict[str, Any], given: int | None, devices: int
) -> None:
    question = job_from([Described(AXONN, grid)], devices=given, model="gpt-5b", changed={})
    assert question.question.devices == devices
    plan = job(question)
    assert (plan.tp, plan.y, plan.z, plan.pp) == (
        *(grid.get(f"G_intra_{axis}", 1) for axis in "rcd"),
        1,
    )
    within = plan.tp * plan.y * plan.z
    assert plan.dp == devices // within
