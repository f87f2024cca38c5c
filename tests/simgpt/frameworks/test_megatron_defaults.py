"""What Megatron-LM does where a script leaves an argument out.

A writer spells most arguments out, so that round trips never meet these defaults. Each row has the
arguments that make a default matter, and the plan or model that follows from it by Megatron-LM's
source, NVIDIA/Megatron-LM@d98e8a6: `A` is megatron/training/arguments.py, `T` megatron/core/
transformer/transformer_config.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, DEEPSPEED, MEGATRON, NEMO, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from
from simgpt.frameworks.reading import FrameworkError
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from tests.simgpt.frameworks.asked import Asked, exported
from workload.gpt import find_model
from workload.plan import Plan

SIZES = {"num-layers": 8, "hidden-size": 256, "num-attention-heads": 4, "seq-length": 512}
USUAL = SIZES | {"vocab-size": 1000, "micro-batch-size": 2, "bf16": True}
SHARDED = {"use-distributed-optimizer": True}
AWARE = {"use-precision-aware-optimizer": True}
FSDP = {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": "optim_grads_params"}
FP8 = {"fp8-format": "hybrid"}
EXPERTS = {"num-experts": 8, "expert-model-parallel-size": 2, "disable-bias-linear": True}
TWO = {"tensor-model-parallel-size": 2}
ROWS = {"sequence-parallel": True}
STAGES = {"pipeline-model-parallel-size": 2}
DRY = {"hidden-dropout": 0.0, "attention-dropout": 0.0}
TRADED = {"context-parallel-size": 8, "cp-comm-type": "a2a+p2p", **DRY}
FULL = {"recompute-granularity": "full"}
ENDS = {
    "num-layers": 6,
    "account-for-embedding-in-pipeline-split": True,
    "account-for-loss-in-pipeline-split": True,
}
INTERLEAVED = STAGES | {"num-virtual-stages-per-pipeline-rank": 2, "global-batch-size": 64}
ROPE = {"position-embedding-type": "rope"}
BIAS = {"moe-router-enable-expert-bias": True, "moe-router-score-function": "sigmoid"}
LATENT = {"multi-latent-attention": True, "qk-layernorm": True, "disable-bias-linear": True}


def asked(settings: dict[str, Any], devices: int | None = 16) -> ImportedJob:
    given = {key: value for key, value in (USUAL | settings).items() if value is not None}
    return job_from([Described(MEGATRON, given)], devices=devices, changed={})


def job(question: ImportedJob) -> Plan:
    assert question.gpt is not None
    return job_of(
        question.gpt,
        dict(question.plan),
        load_stack(question.question.stack),
        devices=question.question.devices,
        batch=question.question.batch,
    ).plan


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # A: tensor, pipeline and context parallelism are 1, and no rank shards anything.
        ({}, {"tp": None, "pp": None, "cp": None, "zero": 0, "vpp": None}),
        (TWO, {"tp": 2, "sp": False}),
        (STAGES, {"vpp": None, "ends_as_layers": None, "schedule": None}),
        # T, cp_comm_type: None is a ring of point-to-point messages.
        ({"context-parallel-size": 2}, {"context_kind": None, "context_heads": None}),
        # core/model_parallel_config.py: first the ranks of the all-to-all, then those of the ring.
        (TRADED | {"hierarchical-context-parallel-sizes": "4 2"}, {"context_heads": 4}),
        (TRADED | {"hierarchical-context-parallel-sizes": "2 4"}, {"context_heads": 2}),
        # A: overlap_grad_reduce and overlap_param_gather are off, and messages beside compute are
        # those of virtual stages; the input gradient's sums run beside the weight gradient's.
        ({}, {"overlap": "oar"}),
        (SHARDED, {"zero": 1, "shard": None, "overlap": "oar"}),
        (INTERLEAVED, {"vpp": 2, "overlap": "oar+pp"}),
        # A: embedding and loss count among the layers of virtual stages, (6 + 2) / 2 / 2.
        (
            STAGES | ENDS | {"num-layers-per-virtual-pipeline-stage": 2, "global-batch-size": 64},
            {"vpp": 2, "ends_as_layers": True},
        ),
        # core/distributed/distributed_data_parallel_config.py, data_parallel_sharding_strategy.
        ({"use-megatron-fsdp": True}, {"zero": 0}),
        # A, expert_tensor_parallel_size: as tensor parallelism; T, moe_token_dispatcher_type.
        (EXPERTS | TWO | ROWS, {"ep": 2, "etp": None, "dispatcher": "all_gather"}),
        (EXPERTS | {"expert-model-parallel-size": None}, {"ep": None, "dispatcher": None}),
        # A: bf16 is summed in fp32, fp16 as it is; without either all is fp32.
        ({}, {"gradients": "fp32", "precision": None}),
        ({"bf16": None, "fp16": True}, {"gradients": "bf16", "precision": None}),
        ({"bf16": None}, {"gradients": None, "precision": "fp32"}),
        # A: but for a dtype of sums of one's own, which the precision-aware optimizer has alone.
        (SHARDED | AWARE | {"main-grads-dtype": "bf16"}, {"gradients": "bf16"}),
        (SHARDED | AWARE | {"main-grads-dtype": "fp32"}, {"gradients": "fp32"}),
        (SHARDED | {"main-grads-dtype": "bf16"}, {"gradients": "fp32"}),
        # core/distributed/fsdp: sums in the dtype of parameters, whatever --bf16 does elsewhere.
        (FSDP, {"zero": 3, "gradients": "bf16"}),
        (FSDP | {"megatron-fsdp-main-grads-dtype": "auto"}, {"gradients": "bf16"}),
        (FSDP | {"megatron-fsdp-main-grads-dtype": "fp32"}, {"gradients": "fp32"}),
        (FSDP | {"bf16": None}, {"gradients": None, "precision": "fp32"}),
        # T, fp8_recipe: delayed, which is fp8 as the stack has it; fp8_param is off.
        (FP8 | SHARDED, {"precision": "fp8", "recipe": None, "fp8_params": None}),
        ({"fp8-recipe": "mxfp8"}, {"precision": None, "recipe": None}),
        ({"fp4-format": "e2m1"}, {"recipe": "nvfp4"}),
        # T, recompute_modules: core_attn; A: --recompute-activations is selective.
        ({"recompute-granularity": "selective"}, {"recompute": "selective"}),
        ({"recompute-activations": True}, {"recompute": "selective"}),
        ({}, {"recompute": "none"}),
        # core/transformer/transformer_block.py: the first N layers of a chunk, or each one.
        (FULL | {"recompute-method": "block", "recompute-num-layers": 3}, {"recompute": "full:3"}),
        (FULL | {"recompute-method": "block", "recompute-num-layers": 0}, {"recompute": "none"}),
        (FULL | {"recompute-method": "uniform"}, {"recompute": "full"}),
        # Before April 2022 one layer was kept by default (152c562, megatron/training/arguments.py).
        ({"activations-checkpoint-method": "block"}, {"recompute": "full:1"}),
        # A: the whole update is offloaded, by AdamW with fp32 moments and master copies.
        (SHARDED | {"optimizer-cpu-offload": True}, {"offload": "update", "offload_share": None}),
        (SHARDED, {"optimizer": None, "moments": None, "master": None, "offload": None}),
        # core/optimizer/optimizer_config.py: with fp32 master copies of bf16 weights the
        # precision-aware optimizer keeps their other 16 bits.
        (
            SHARDED | AWARE,
            {"moments": None, "master": "remainders"},
        ),
        # Megatron-FSDP's master copies are fp32 (megatron_fsdp_main_params_dtype), and whole.
        (FSDP | AWARE, {"zero": 3, "master": None}),
        # A: --attention-backend is auto, of Transformer Engine's layers.
        ({}, {"attention": "flash"}),
        ({"transformer-impl": "local"}, {"attention": "unfused"}),
    ],
)
def test_an_argument_that_is_left_out_is_megatrons_default_in_the_plan(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    question = asked(settings)
    assert question.refused == ()
    assert {key: question.plan.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # A: 4 x hidden, or with --swiglu 2/3 of it in multiples of 64: 682.7 is 640.
        ({}, {"ffn": 1024, "activation": "gelu", "norm": "layernorm", "biases": True}),
        ({"swiglu": True}, {"ffn": 640, "activation": "swiglu"}),
        ({}, {"positions": "learned", "tied": True, "dropout": 0.1, "kv_heads": 0}),
        (ROPE, {"rope_base": 10_000}),
        # A: one group of keys and values.
        ({"group-query-attention": True}, {"kv_heads": 1}),
        ({}, {"head_width": 0, "mtp_layers": 0, "window": 0, "sinks": False, "vocab": 1000}),
        (ROPE | DRY | {"mtp-num-layers": 1}, {"mtp_loss": 0.1}),
        # T, window_attn_skip_freq: every layer is within the window of 128 tokens and itself.
        ({"window-size": "127,0"}, {"window": 128, "global_every": 0}),
        # A, _add_mla_args; queries are not compressed.
        (
            LATENT,
            {"kv_rank": 32, "q_rank": 0, "head_width": 128, "rope_width": 64, "value_width": 0},
        ),
        # T: two of the experts by a softmax over the chosen; all layers have experts, as wide as
        # the MLP; aux_loss weighs nothing by default, and no place is dropped.
        (EXPERTS, {"topk": 2, "router": "softmax-topk", "expert_ffn": 1024, "router_scale": 1.0}),
        (EXPERTS, {"dense_layers": 0, "expert_every": 1, "shared_ffn": 0, "capacity": 0.0}),
        (EXPERTS, {"balance_loss": 0.0, "router_groups": 0, "router_bias": False}),
        (EXPERTS | {"moe-aux-loss-coeff": 0.01}, {"balance_over": "micro_batch"}),
        # moe/moe_utils.py, topk_routing_with_score_function: without a limit all groups are chosen.
        (
            EXPERTS | {"moe-router-num-groups": 4, "moe-router-topk": 4},
            {"router_groups": 4, "router_topk_groups": 4},
        ),
        (EXPERTS | BIAS, {"router_bias_rate": 1e-3}),
        # A: GPT-2's vocabulary, where its file is given and no tokenizer is named.
        ({"vocab-size": None, "vocab-file": "vocab.json"}, {"vocab": 50257}),
    ],
)
def test_an_argument_that_is_left_out_is_megatrons_default_in_the_model(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    gpt = asked(settings).gpt
    assert gpt is not None
    assert {field: gpt.value(field) for field in expected} == expected


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [({}, 16), (TWO, 8), (TWO | STAGES, 4), (TWO | {"context-parallel-size": 4}, 2)],
)
def test_without_a_batch_each_rank_has_one_micro_batch(
    settings: dict[str, Any], ranks: int
) -> None:
    """A: global_batch_size is micro_batch_size x data_parallel_size, which is what tensor, pipeline
    and context parallelism leave of 16."""
    plan = job(asked(settings))
    assert (plan.dp, plan.batch, plan.mbs) == (ranks, 2 * ranks, 2)


@pytest.mark.parametrize(("layers", "said"), [(None, False), (1, False), (2, True)])
def test_units_of_several_layers_that_run_again_are_said(layers: int | None, *, said: bool) -> None:
    """core/transformer/transformer_block.py: a unit's input alone is kept; by default of one."""
    question = asked(FULL | {"recompute-method": "uniform", "recompute-num-layers": layers})
    assert [each.name for each in question.changes] == ["--recompute-num-layers"] * said


def test_a_script_without_a_micro_batch_which_megatron_refuses_is_said() -> None:
    """A: assert args.micro_batch_size is not None."""
    question = asked({"micro-batch-size": None, "global-batch-size": 64})
    assert [each.name for each in question.changes] == ["--micro-batch-size"]
    assert asked({}).changes == ()


@pytest.mark.parametrize(
    ("settings", "shard"),
    [
        ({}, 8),
        (TWO, 4),
        (STAGES, 4),
        ({"context-parallel-size": 2}, 4),
        (TWO | STAGES | {"context-parallel-size": 2}, 1),
        ({"num-distributed-optimizer-instances": 4}, 4),
    ],
)
def test_instances_of_the_optimizer_shard_over_what_the_other_axes_leave(
    settings: dict[str, Any], shard: int
) -> None:
    """core/parallel_state.py: data x context ranks by the instances; `shard` counts those of data.

    2 instances on 16 devices, of tp=2 2 x 4, of cp=2 4 of data with 2 of context each.
    """
    plan = asked(SHARDED | {"num-distributed-optimizer-instances": 2} | settings).plan
    assert plan["shard"] == shard
    unknown = asked(SHARDED | {"num-distributed-optimizer-instances": 2}, devices=None)
    assert "shard" not in unknown.plan
    assert [each.name for each in unknown.changes] == ["--num-distributed-optimizer-instances"]


@pytest.mark.parametrize(
    ("schedule", "batch"),
    [("0:384 200B:768 400B:1152", 1152), ("'0:16'", 16), ("0:16 2.4B:320", 320)],
)
def test_the_batch_of_a_schedule_is_its_last(schedule: str, batch: int) -> None:
    """core/num_microbatches_calculator.py; beside a batch, which A refuses, that one is taken."""
    question = asked({"step-batch-size-schedule": schedule})
    assert question.question.batch == batch
    assert [each.name for each in question.changes] == ["--step-batch-size-schedule"]
    both = asked({"step-batch-size-schedule": schedule, "global-batch-size": 64})
    assert both.question.batch == 64
    with pytest.raises(FrameworkError, match="--step-batch-size-schedule"):
        asked({"step-batch-size-schedule": "0:16 many"})


FORK = {"deepspeed": True}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The stage is that of DeepSpeed's JSON, 0 by default: zero/config.py, stage. In bf16 behind
        # the pipeline's engine, which runs unless it is switched off, states are sharded too.
        ({"bf16": None, "fp16": True}, {"zero": 0}),
        ({}, {"zero": 1}),
        ({"zero-stage": 0}, {"zero": 1}),
        ({"zero-stage": 2}, {"zero": 2}),
        ({"no-pipeline-parallel": True}, {"zero": 0}),
        # Collectives of tensor parallelism and of gradients wait, and attention is not fused.
        (TWO | {"overlap-grad-reduce": True}, {"overlap": "none", "attention": "unfused"}),
        ({"use-flash-attn-v2": True}, {"attention": "flash"}),
        # Without --pp-partition-method stages are split by layers alone.
        (STAGES, {"ends_as_layers": None}),
        (STAGES | {"pp-partition-method": "type:transformer|embedding"}, {"ends_as_layers": True}),
        ({"pp-partition-method": "type:transformer|embedding"}, {"ends_as_layers": None}),
        ({"cpu-optimizer": True}, {"offload": "update"}),
    ],
)
def test_an_argument_that_is_left_out_is_megatron_deepspeeds_default(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    question = asked(FORK | settings)
    assert question.refused == ()
    assert {key: question.plan.get(key) for key in expected} == expected
    assert question.question.stack == "megatron-deepspeed"


@pytest.mark.parametrize(
    ("precision", "arguments", "stage", "zero"),
    [
        ("bf16", {}, 0, 1),
        ("bf16", {"no-pipeline-parallel": True}, 0, 0),
        ("bf16", {}, 2, 2),
        # FP16_Optimizer shards nothing: engine.py, _do_optimizer_sanity_check.
        ("fp16", {}, 0, 0),
        ("fp16", {}, 1, 1),
    ],
)
def test_the_stage_is_that_of_deepspeeds_json_whatever_the_script_says(
    precision: str, arguments: dict[str, Any], stage: int, zero: int
) -> None:
    halves = {"bf16": None, precision: True}
    given = {**USUAL, **FORK, **halves, **arguments, "zero-stage": 3}
    script = Described(MEGATRON, {key: each for key, each in given.items() if each is not None})
    own = {f"{precision}.enabled": True, "zero_optimization.stage": stage}
    question = job_from([script, Described(DEEPSPEED, own)], devices=16, changed={})
    assert (question.plan["zero"], question.plan["gradients"]) == (zero, "bf16")


@pytest.mark.parametrize(("axes", "ranks"), [({}, 16), (TWO, 8), (STAGES, 8), (TWO | STAGES, 4)])
def test_deepspeed_counts_its_batch_over_the_ranks_that_the_scripts_axes_leave(
    axes: dict[str, Any], ranks: int
) -> None:
    """runtime/config.py, world_size: ranks of data. 2 sequences in 4 steps of each; and a batch of
    2 x 4 x 2 is one of 2 ranks, times what else the script splits over."""
    script = Described(MEGATRON, USUAL | FORK | axes)
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    own = Described(DEEPSPEED, {"bf16.enabled": True, **sizes})
    question = job_from([script, own], devices=16, changed={})
    assert question.question.batch == 2 * 4 * ranks
    whole = Described(DEEPSPEED, {"bf16.enabled": True, "train_batch_size": 16, **sizes})
    assert job_from([script, whole], changed={}).question.devices == 2 * 16 // ranks


def test_a_json_of_deepspeeds_that_is_not_given_is_said() -> None:
    given = FORK | {"deepspeed-config": "ds.json"}
    assert [each.name for each in asked(given).changes] == ["--deepspeed-config"]
    assert asked(given | {"zero-stage": 1}).changes == ()


def test_ways_to_split_stages_that_are_not_read_are_said() -> None:
    for method, more in (("parameters", {}), ("type:transformer|embedding", {"untie": True})):
        untied = {"untie-embeddings-and-output-weights": True} if more else {}
        question = asked(FORK | STAGES | {"pp-partition-method": method} | untied)
        assert [each.name for each in question.changes] == ["--pp-partition-method"]
        assert "ends_as_layers" not in question.plan


OF_BRIDGE = {f"model.{key.replace('-', '_')}": value for key, value in SIZES.items()} | {
    "model.vocab_size": 1000,
    "train.micro_batch_size": 2,
    "train.global_batch_size": 64,
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # training/mixed_precision.py: bf16_mixed reduces in fp32; fp8 without a recipe is as the
        # stack has it.
        ({"mixed_precision": "bf16_mixed"}, {"gradients": "fp32", "precision": None}),
        ({"mixed_precision": "bf16_mixed", "mixed_precision.fp8": "hybrid"},
         {"precision": "fp8", "recipe": None}),
        ({}, {"gradients": "fp32", "precision": None, "zero": 0, "vpp": None}),
        # recipes/common.py: all recipes have optim_grads_params.
        ({"dist.use_megatron_fsdp": True}, {"zero": 3}),
        ({"dist.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "no_shard"},
         {"zero": 0}),
        ({"model.pipeline_model_parallel_size": 2,
          "model.virtual_pipeline_model_parallel_size": None}, {"pp": 2, "vpp": None}),
        ({"model.num_query_groups": 2}, {"zero": 0}),
        # Megatron-Core's own defaults, in the names of recipes.
        ({"model.tensor_model_parallel_size": 2, "model.num_moe_experts": 8,
          "model.add_bias_linear": False, "model.expert_model_parallel_size": 2,
          "model.sequence_parallel": True}, {"ep": 2, "etp": None}),
    ],
)  # fmt: skip
def test_a_key_that_is_left_out_is_megatron_bridges_default(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    described = Described(BRIDGE, OF_BRIDGE | settings)
    question = job_from([described], devices=16, changed={})
    assert question.refused == ()
    assert {key: question.plan.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, True),
        ({"ddp.use_distributed_optimizer": False}, False),
        ({"optimizer.use_distributed_optimizer": True}, False),
    ],
)
def test_a_yaml_of_bridges_that_leaves_sharding_to_its_recipe_is_said(
    settings: dict[str, Any], said: bool
) -> None:
    """recipes/common.py has use_distributed_optimizer, which tutorials/recipes/llama/conf/
    llama32_1b_pretrain.yaml and such leave out (067f987)."""
    described = Described(BRIDGE, OF_BRIDGE | {"mixed_precision": "bf16_mixed"} | settings)
    question = job_from([described], devices=16, changed={})
    names = [each.name for each in question.changes]
    assert names == ["ddp.use_distributed_optimizer"] * said


def test_an_exported_recipe_turns_off_what_recipes_have_on() -> None:
    plan = {"dp": 16, "zero": 0, "overlap": "none", "mbs": 1}
    asked_plan = Asked(find_model("llama-3.1-8b"), plan, None, 16)
    settings = exported(asked_plan, BRIDGE).settings
    for name in ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"):
        assert settings[f"ddp.{name}"] is False


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"model.fsdp": True, "model.fsdp_grad_reduce_dtype": "bf16"}, ["model.fsdp"]),
        ({"model.fsdp": False, "model.fsdp_grad_reduce_dtype": "bf16"}, []),
        ({"trainer.strategy.fsdp": "pytorch"}, ["trainer.strategy.fsdp"]),
        ({"trainer.strategy.fsdp": "megatron"}, []),
    ],
)
def test_fsdp_of_pytorch_within_nemo_is_refused_by_name(
    settings: dict[str, Any], refused: list[str]
) -> None:
    described = Described(NEMO, OF_BRIDGE | {"trainer.precision": "bf16"} | settings)
    question = job_from([described], devices=16, changed={})
    assert [each.name for each in question.refused] == refused
    assert question.unknown == (
        ("model.fsdp_grad_reduce_dtype",) if refused == ["model.fsdp"] else ()
    )
    zero = 3 if settings.get("trainer.strategy.fsdp") == "megatron" else 0
    assert question.plan["zero"] == zero
