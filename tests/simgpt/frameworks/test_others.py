"""torchtitan's TOML, DeepSpeed's JSON and recipes as questions, with the frameworks' defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import DEEPSPEED, MEGATRON, TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import imported, job_from
from simgpt.frameworks.reading import FrameworkError
from tests.messages import assert_names, names

RECIPE = """
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  seq_length: 8192
  vocab_size: 128256
  gated_linear_unit: true
  activation_func: torch.nn.functional.silu
  normalization: RMSNorm
  position_embedding_type: rope
  rotary_base: 500000
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  tensor_model_parallel_size: 2
  sequence_parallel: true
  virtual_pipeline_model_parallel_size: null
train: {micro_batch_size: 1, global_batch_size: 128, train_iters: 10}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}
comm_overlap: {tp_comm_overlap: true}
mixed_precision: bf16_with_fp8_current_scaling_mixed
checkpoint: {save: null}
"""
NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16, max_steps: 100}
model:
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 4
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  activations_checkpoint_granularity: selective
  tokenizer: {library: sentencepiece}
  optim: {name: distributed_fused_adam, overlap_grad_sync: true, lr: 1e-4}
"""
P, AC = "parallelism.", "activation_checkpoint."
LAYERS = P + "pipeline_parallel_layers_per_stage"
HIDES = P + "pipeline_parallel_expert_parallel_overlap"


def titan(devices: int | None = 64, **settings: Any) -> ImportedJob:
    """The question of Llama 3.1 8B with settings of torchtitan, `__` for the dot."""
    own = {name.replace("__", "."): value for name, value in settings.items()}
    own |= {"model.name": "llama3", "model.flavor": "8B"}
    return job_from([Described(TORCHTITAN, own)], devices=devices, changed={})


def deepspeed(devices: int | None = 64, **settings: Any) -> ImportedJob:
    """The question of Llama 3.1 8B with settings of DeepSpeed."""
    own = {name.replace("__", "."): value for name, value in settings.items()}
    return job_from([Described(DEEPSPEED, own)], devices=devices, model="llama-3.1-8b", changed={})


def test_torchtitan_shards_over_all_ranks_where_it_is_not_told() -> None:
    question = titan(training__local_batch_size=2)
    assert question.question.plan == (
        "dp=rest,mbs=2,zero=3,recompute=full:16,gradients=fp32"
    )  # half of 32 layers run again: selective_ac_option is 2
    assert (question.question.batch, question.question.stack) == (128, "torchtitan-eager")
    assert question.question.model_set == {"sequence": 2048}


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"parallelism__data_parallel_replicate_degree": 8}, "shard", 8),
        ({"parallelism__data_parallel_replicate_degree": 64}, "zero", 0),
        ({"parallelism__tensor_parallel_degree": 2}, "sp", True),
        ({"parallelism__pipeline_parallel_degree": 2}, "reshard", False),
        ({"parallelism__pipeline_parallel_degree": 2,
          "parallelism__pipeline_parallel_schedule": "Interleaved1F1B"}, "vpp", 2),
        ({"parallelism__pipeline_parallel_degree": 2,
          "parallelism__pipeline_parallel_layers_per_stage": 4,
          "parallelism__pipeline_parallel_first_stage_less_layers": 0,
          "parallelism__pipeline_parallel_last_stage_less_layers": 0,
          "parallelism__pipeline_parallel_schedule": "Interleaved1F1B"}, "vpp", 4),
        ({"parallelism__fsdp_reshard_after_forward": "never"}, "reshard", False),
        ({"activation_checkpoint__mode": "none"}, "recompute", "none"),
        ({"activation_checkpoint__selective_ac_option": "op"}, "recompute", "selective"),
        ({"activation_checkpoint__selective_ac_option": "8"}, "recompute", "full:4"),
        ({"model__converters": ["float8"]}, "precision", "fp8"),
        ({"training__mixed_precision_param": "float32"}, "precision", "fp32"),
    ],
)  # fmt: skip
def test_torchtitans_settings_become_a_plans_keys(
    settings: dict[str, Any], key: str, value: object
) -> None:
    assert titan(**settings).plan[key] == value


@pytest.mark.parametrize(
    ("word", "schedule"), [("ZBVZeroBubble", "zb-v"), ("dualpipev", "dualpipe-v")]
)
def test_torchtitans_schedules_in_a_v_have_two_chunks_a_stage(word: str, schedule: str) -> None:
    """They are PyTorch's classes of these names, whatever the case: `workload/test_v_shape.py`
    holds each schedule to its class. On four stages two layers a chunk are four chunks a stage."""
    settings: dict[str, Any] = {P + "pipeline_parallel_degree": 4}
    settings[P + "pipeline_parallel_schedule"] = word
    settings[P + "pipeline_parallel_first_stage_less_layers"] = 0
    settings[P + "pipeline_parallel_last_stage_less_layers"] = 0
    for each in (None, 4):
        question = titan(**settings, **({LAYERS: each} if each else {}))
        assert (question.plan["schedule"], question.plan["vpp"]) == (schedule, 2)
        assert (question.changes, question.refused) == ((), ())
    (refused,) = titan(**settings, **{LAYERS: 2}).refused
    assert refused.name == LAYERS
    assert_names(refused.why, "4")
    (refused,) = titan(**settings | {P + "pipeline_parallel_schedule": "LoopedBFS"}).refused
    known = ("1F1B", "Interleaved1F1B", "GPipe", "ZBVZeroBubble", "DualPipeV")
    assert_names(refused.why, *known)


def test_torchtitans_dualpipe_v_hides_no_all_to_alls_here_which_is_said() -> None:
    """It does by default, where there are experts on other ranks; in pairs of whole passes."""
    settings = {P + "pipeline_parallel_degree": 4, P + "expert_parallel_degree": 8}
    for word, given, said in (
        ("DualPipeV", {}, [HIDES]),
        ("DualPipeV", {HIDES: True}, [HIDES]),
        ("DualPipeV", {HIDES: False}, []),
        ("ZBVZeroBubble", {}, []),
    ):
        own = {**settings, P + "pipeline_parallel_schedule": word, **given}
        model = {"model.name": "qwen3", "model.flavor": "235B-A22B"}
        question = job_from([Described(TORCHTITAN, own | model)], devices=64, changed={})
        assert [each.name for each in question.changes if each.name == HIDES] == said


def test_a_flavor_that_is_not_known_leaves_the_model_to_be_given() -> None:
    settings = {"model.flavor": "debugmodel", AC + "selective_ac_option": "4"}
    question = job_from([Described(TORCHTITAN, settings)], devices=8, changed={})
    assert (question.question.model, question.missing) == ("", ())
    assert question.plan["recompute"] == "selective"
    assert [each.name for each in question.changes] == ["model.flavor", AC + "selective_ac_option"]
    assert question.command().startswith("simgpt predict MODEL -m MACHINE -n 8 ")


def test_degrees_of_experts_of_an_unknown_model_are_said_and_those_of_a_given_one_read() -> None:
    degrees = {P + "expert_parallel_degree": 8, P + "expert_tensor_parallel_degree": 1}
    degrees[P + "tensor_parallel_degree"] = 2
    settings = {"model.name": "deepseek_v3", "model.flavor": "debugmodel", **degrees}
    described = [Described(TORCHTITAN, settings)]
    unknown = job_from(described, devices=64, changed={})
    assert "ep" not in unknown.plan
    said = {each.name: each.why for each in unknown.changes}
    assert_names(said[P + "expert_parallel_degree"], "experts")
    assert P + "expert_tensor_parallel_degree" not in said  # 1, and nothing is split
    wider = Described(TORCHTITAN, settings | {P + "expert_tensor_parallel_degree": 2})
    others = {each.name: each.why for each in job_from([wider], devices=64, changed={}).changes}
    assert_names(others[P + "expert_tensor_parallel_degree"], "experts")
    given = job_from(described, devices=64, model="qwen3-30b-a3b", changed={})
    assert (given.plan["ep"], given.plan["etp"]) == (8, 1)
    assert given.changes == ()
    dense = job_from(described, devices=64, model="llama-3.1-8b", changed={})
    assert "ep" not in dense.plan


@pytest.mark.parametrize("word", ["foo", "0", "-1"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", None])
def test_an_unknown_choice_of_what_runs_again_is_refused(word: str, model: str | None) -> None:
    name = AC + "selective_ac_option"
    settings = {"model.flavor": "debugmodel", AC + "mode": "selective", name: word}
    described = [Described(TORCHTITAN, settings)]
    (refused,) = job_from(described, devices=64, model=model, changed={}).refused
    assert str(refused) == f"{name} {word}"
    assert_names(refused.why, "op")


def test_torchtitan_says_how_many_devices_there_are() -> None:
    degrees = {"data_parallel_shard_degree": 8, "data_parallel_replicate_degree": 2}
    settings = {P + key: value for key, value in degrees.items()}
    assert titan(None, **settings).question.devices == 16


def test_what_torchtitan_runs_otherwise_is_said() -> None:
    question = titan(
        parallelism__pipeline_parallel_degree=2,
        parallelism__pipeline_parallel_first_stage_less_layers=0,
        training__global_batch_size=1024,
        parallelism__tensor_parallel_degree=2,
        parallelism__enable_async_tensor_parallel=True,
        optimizer__name="Muon",
    )
    assert [each.name for each in question.changes] == [
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "training.global_batch_size",
        "optimizer.name",
        "parallelism.enable_async_tensor_parallel",
    ]
    assert titan(model__name="llama3").question.model == "llama-3.1-8b"


def test_zero_of_deepspeeds_first_format_is_stage_1() -> None:
    assert deepspeed(zero_optimization=True).plan["zero"] == 1
    assert deepspeed(zero_optimization=False).plan["zero"] == 0


def test_any_two_of_deepspeeds_sizes_say_the_third() -> None:
    full = {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 2}
    assert deepspeed(None, **full, gradient_accumulation_steps=4).question.devices == 64
    assert deepspeed(**full).plan["mbs"] == 2
    halves = deepspeed(train_batch_size=512, gradient_accumulation_steps=4)
    assert halves.plan["mbs"] == 2
    alone = deepspeed(train_micro_batch_size_per_gpu=2, train_batch_size="auto")
    assert alone.question.batch == 128
    with pytest.raises(FrameworkError, check=names("512", "6")):
        deepspeed(**full, gradient_accumulation_steps=3)


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"zero_optimization__stage": 3}, "overlap", "ors+oag"),
        ({"zero_optimization__stage": 2}, "overlap", "none"),
        ({"zero_optimization__stage": 1, "zero_optimization__overlap_comm": True}, "overlap", "dp"),
        ({"zero_optimization__stage": 3, "zero_optimization__mics_shard_size": 8}, "shard", 8),
        ({"zero_optimization__stage": 3, "zero_optimization__zero_hpz_partition_size": 1},
         "zero", 3),
        ({"bf16__enabled": True}, "gradients", "bf16"),
        ({"bf16__enabled": True, "data_types__grad_accum_dtype": "fp32"}, "gradients", "fp32"),
        ({}, "precision", "fp32"),
    ],
)  # fmt: skip
def test_deepspeeds_settings_become_a_plans_keys(
    settings: dict[str, Any], key: str, value: object
) -> None:
    assert deepspeed(**settings).plan[key] == value


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"bf16__enabled": "auto", "fp16__enabled": "auto"}, "gradients", "bf16"),
        ({"fp16__enabled": "auto", "bf16__enabled": False}, "gradients", "bf16"),
        ({"zero_optimization__stage": "auto"}, "zero", 0),
        ({"zero_optimization__stage": 3, "zero_optimization__mics_shard_size": "auto"}, "zero", 3),
        ({"zero_optimization__stage": 1, "zero_optimization__overlap_comm": "auto"},
         "overlap", "none"),
        ({"zero_optimization__stage": 3, "zero_optimization__zero_quantized_weights": "auto"},
         "zero", 3),
        ({"train_batch_size": 512, "gradient_accumulation_steps": "auto",
          "train_micro_batch_size_per_gpu": 2}, "mbs", 2),
        ({"no_such_setting": "auto"}, "zero", 0),
    ],
)  # fmt: skip
def test_what_a_script_fills_in_is_said_with_what_is_assumed(
    settings: dict[str, Any], key: str, value: object
) -> None:
    """16 bits are never taken for fp32 because the script says which of them it is."""
    beside: dict[str, Any] = {"optimizer__params__lr": "auto", "gradient_clipping": "auto"}
    question = deepspeed(**settings, **beside)
    assert question.plan[key] == value
    assert ("precision" in question.plan) == ("bf16__enabled" not in settings)
    said = {each.name: each.why for each in question.changes if each.value == "auto"}
    filled_in = [name.replace("__", ".") for name in settings if settings[name] == "auto"]
    assert sorted(said) == sorted(filled_in)
    assert all(said.values())
    assert {each.value for each in question.without_effect} == {"auto"}


def test_hpz_is_refused_by_name_with_the_nearest_that_runs() -> None:
    """Its first shards stay over all ranks (ZeRO++, arXiv 2306.10209, section 3.2): no MiCS."""
    name = "zero_optimization.zero_hpz_partition_size"
    question = deepspeed(zero_optimization__stage=3, zero_optimization__zero_hpz_partition_size=8)
    (refused,) = question.refused
    assert (refused.name, refused.value) == (name, "8")
    assert_names(refused.why, "zero=3")
    assert "shard" not in question.plan


def test_deepspeeds_buckets_and_sub_groups_of_other_sizes_are_said_where_they_matter() -> None:
    def said(stage: int, **sizes: Any) -> list[str]:
        own = {f"zero_optimization__{key}": value for key, value in sizes.items()}
        changes = deepspeed(zero_optimization__stage=stage, **own).changes
        return [each.name.removeprefix("zero_optimization.") for each in changes]

    sizes = {"reduce_bucket_size": 2e8, "sub_group_size": 1e8, "allgather_bucket_size": 2e8}
    found = [said(stage, **sizes) for stage in (0, 2, 3)]
    assert found == [[], ["reduce_bucket_size"], ["reduce_bucket_size", "sub_group_size"]]
    assert said(3, reduce_bucket_size=5e8, sub_group_size=1e9) == []
    assert said(2, reduce_bucket_size="auto") == ["reduce_bucket_size"]
    assert deepspeed().question.stack == "deepspeed"


def test_deepspeeds_batch_that_other_ranks_share_is_refused() -> None:
    """DeepSpeed compares the batch with micro-batch x accumulation steps x ranks: 512 = 1 x 4 x 128
    (deepspeed/runtime/config.py, `_batch_assertion`)."""
    full: dict[str, Any] = {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 1}
    full["gradient_accumulation_steps"] = 4
    assert deepspeed(128, **full).refused == ()
    (refused,) = deepspeed(64, **full).refused
    assert str(refused) == "train_batch_size 512"
    assert_names(refused.why, "1 x 4", "128 ranks", "64")
    (refused,) = deepspeed(64, train_batch_size=384, gradient_accumulation_steps=4).refused
    assert_names(refused.why, "4", "64 ranks")


@pytest.mark.parametrize(("tensor", "refused"), [(2, []), (1, ["train_batch_size"])])
def test_ranks_that_share_deepspeeds_batch_are_those_of_data_alone(
    tensor: int, refused: list[str]
) -> None:
    """64 = 2 x 4 x 8, of 16 devices with tensor parallelism over 2."""
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}
    own = Described(DEEPSPEED, sizes | {"gradient_accumulation_steps": 4})
    arguments = {"tensor-model-parallel-size": tensor, "fp16": True}
    script = Described(MEGATRON, arguments, 16)
    question = job_from([script, own], model="llama-3.1-8b", changed={})
    assert [each.name for each in question.refused] == refused
    alone = job_from([Described(MEGATRON, arguments), own], model="gpt2", changed={})
    assert alone.question.devices == 8 * tensor


STATES = {"offload_optimizer": {"device": "cpu"}}
PARTLY, RATIO = {"device": "cpu", "ratio": 0.4}, "offload_optimizer.ratio"


@pytest.mark.parametrize(
    ("words", "offload", "refused"),
    [
        ({}, "parameters", 0),
        ({"parallelism__data_parallel_shard_degree": 1}, None, 0),
        ({"parallelism__pipeline_parallel_degree": 2}, None, 1),
        ({"model__converters": ["float8"]}, None, 1),
        ({"training__enable_cpu_offload": False}, None, 0),
    ],
)
def test_torchtitans_offload_is_that_of_parameters(
    words: dict[str, Any], offload: str | None, refused: int
) -> None:
    question = titan(**{"training__enable_cpu_offload": True, **words})
    assert question.plan.get("offload") == offload
    assert len(question.refused) == refused


@pytest.mark.parametrize(
    ("stage", "words", "offload", "refused"),
    [
        (2, {"offload_optimizer": {"device": "cpu", "pin_memory": True}}, "update", []),
        (3, {"offload_optimizer": {"device": "cpu", "ratio": 1.0}}, "update", []),
        (1, {"cpu_offload": True}, "update", []),
        (2, {"offload_optimizer": {"device": "none"}}, None, []),
        (0, {"offload_optimizer": {"device": "cpu"}}, None, []),
        (3, {"offload_optimizer": {"device": "nvme"}}, None, ["offload_optimizer.device"]),
        (3, {"offload_optimizer": {"device": "cpu", "ratio": 0.4}}, "update", []),
        (2, {"offload_optimizer": {"device": "cpu", "ratio": 0.4}}, "update", []),
        (3, {"offload_optimizer": {"device": "cpu", "ratio": 0.0}}, "update", [RATIO]),
        (
            3,
            {**STATES, "offload_param": {"device": "cpu"}, "offload_optimizer": PARTLY},
            "parameters",
            [RATIO],
        ),
        (3, {**STATES, "offload_param": {"device": "cpu", "pin_memory": True}}, "parameters", []),
        (3, {"cpu_offload": True, "cpu_offload_param": True}, "parameters", []),
        (2, {**STATES, "offload_param": {"device": "cpu"}}, "update", []),
        (3, {**STATES, "offload_param": {"device": "none"}}, "update", []),
        (3, {**STATES, "offload_param": {"device": "nvme"}}, "update", ["offload_param.device"]),
        (3, {"offload_param": {"device": "cpu"}}, None, ["offload_param.device"]),
        (3, {"cpu_offload_param": True}, None, ["cpu_offload_param"]),
    ],
)
def test_deepspeeds_offload_is_an_update_on_the_host_or_refused_by_name(
    tmp_path: Path, stage: int, words: dict[str, Any], offload: str | None, refused: list[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": stage, **words}}))
    question = imported([path], model="gpt2")
    assert question.plan.get("offload") == offload
    assert [each.name for each in question.refused] == [f"zero_optimization.{r}" for r in refused]
    partly = words.get("offload_optimizer", {}).get("ratio") == 0.4 and stage == 3 and not refused
    assert question.plan.get("offload_share") == (0.4 if partly else None)


def test_a_megatron_script_with_deepspeeds_json_is_megatron_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        "deepspeed --num_nodes 2 --num_gpus 8 pretrain.py --num-layers 4 --hidden-size 64 "
        "--num-attention-heads 4 --seq-length 64 --vocab-size 512 --micro-batch-size 1 --fp16 "
        "--tensor-model-parallel-size 2 --global-batch-size 32"
    )
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "train_batch_size": 64}'
    )
    question = imported([tmp_path / "ds.json", tmp_path / "a.sh"])
    assert (question.question.stack, question.question.devices, question.question.batch) == (
        "megatron-deepspeed",
        16,
        64,
    )
    assert (question.plan["zero"], question.plan["tp"]) == (1, 2)
    other = Described(TORCHTITAN, {})
    with pytest.raises(FrameworkError, check=names("megatron", "torchtitan")):
        job_from([Described(MEGATRON, {}), other], changed={})


def test_a_recipe_of_megatron_bridge_is_the_question_that_it_asks(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    question = imported([path], devices=64)
    assert question.frameworks == ("megatron-bridge",)
    assert (question.question.model, question.question.batch) == ("llama-3.1-8b", 128)
    assert question.question.plan == (
        "tp=2,dp=rest,mbs=1,zero=1,overlap=oar+dp,recompute=none,attention=flash,"
        "gradients=fp32,sp=true,recipe=fp8-tensorwise,fp8_params=true"
    )
    assert [each.name for each in question.changes] == [
        "comm_overlap.tp_comm_overlap",
        "mixed_precision.first_last_layers_bf16",
    ]
    path.write_text(RECIPE.replace("mixed_precision: bf16", "precision_of: bf16"))
    changes = {each.name: each.why for each in imported([path], devices=64).changes}
    assert_names(changes["mixed_precision"], "bf16")


def test_a_recipe_of_nemo_says_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "nemo.yaml"
    path.write_text(NEMO)
    question = imported([path], changed={"vocab": 32000})
    assert (question.frameworks, question.question.devices) == (("nemo",), 32)
    assert question.question.model == "llama-2-7b"
    assert (question.plan["zero"], question.plan["recompute"]) == (1, "selective")
    assert [each.name for each in question.changes] == ["model.optim.overlap_grad_sync"]
