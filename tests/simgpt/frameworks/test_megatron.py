"""Megatron-LM's arguments as a question: what is carried, what follows, what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import MEGATRON, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import imported, job_from
from simgpt.frameworks.reading import FrameworkError
from tests.messages import assert_names, names

FILES = Path(__file__).parent / "files"
SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "pretrain.sh"
SMALL = {
    "num-layers": 8,
    "hidden-size": 256,
    "num-attention-heads": 4,
    "seq-length": 512,
    "vocab-size": 1000,
    "micro-batch-size": 1,
    "bf16": True,
}
FSDP = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}


def asked(devices: int | None = 16, **settings: Any) -> ImportedJob:
    """The question of a small model with further arguments, `_` for `-`."""
    own = {name.replace("_", "-"): value for name, value in settings.items()}
    return job_from([Described(MEGATRON, SMALL | own)], devices=devices, changed={})


def changed(question: ImportedJob) -> dict[str, str]:
    return {each.name: each.why for each in question.changes}


def test_a_script_is_the_question_that_it_asks() -> None:
    question = imported([SCRIPT])
    assert (question.question.model, question.question.model_set) == ("llama-2-13b", {})
    assert question.question.plan == (
        "tp=2,pp=4,vpp=5,dp=rest,mbs=1,zero=1,overlap=oar+dp+pp,recompute=none,"
        "attention=flash,gradients=fp32,sp=true"
    )
    assert (question.question.devices, question.question.batch) == (128, 1024)
    assert set(changed(question)) == {"--tp-comm-overlap", "if [[ -f $OUT/latest ]]"}
    assert {each.name for each in question.without_effect} == {
        "--lr", "--train-iters", "--save", "--split", "--max-position-embeddings",
    }  # fmt: skip


def test_what_a_script_takes_from_its_surroundings_can_be_given() -> None:
    question = imported([SCRIPT], defined={"NODES": "4", "TP": "1"})
    assert (question.question.devices, question.question.batch) == (32, 256)
    assert question.plan["recompute"] == "full"
    assert "sp" not in question.plan  # Megatron switches it off with one rank


def test_a_tests_yaml_is_read_with_its_environment() -> None:
    question = imported([FILES / "dense.yaml"], devices=16)
    gpt = question.gpt
    assert gpt is not None
    assert (gpt.ffn, gpt.attention.kv_heads, gpt.dropout, gpt.tied) == (2048, 2, 0.1, True)
    assert gpt.vocab == 8192  # 4 times 2 * 1,024
    assert question.plan["recompute"] == "full:3"
    assert (question.plan["precision"], question.plan["cp"]) == ("fp8", 2)
    assert question.plan["attention"] == "unfused"
    assert question.plan["gradients"] == "bf16"  # fp16 sums in fp16 where it is not told otherwise
    assert_names(changed(question)["--fp16"], "bf16")
    others = {"--deterministic-mode", "--novel-trick", "NCCL_ALGO"}
    assert changed(question).keys() == {"--fp16", *others}


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"use_megatron_fsdp": True}, "zero", 0),  # no_shard, its default
        (FSDP, "zero", 3),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"}, "zero", 1),
        ({"data_parallel_sharding_strategy": "optim_grads"}, "zero", 0),
        ({"use_distributed_optimizer": True, "overlap_grad_reduce": True}, "overlap", "oar+dp"),
        (FSDP | {"overlap_grad_reduce": True, "overlap_param_gather": True},
         "overlap", "oar+ors+oag"),
        (FSDP | {"overlap_grad_reduce": True, "overlap_param_gather": True,
          "num_distributed_optimizer_instances": 2}, "overlap", "oar+ors+oag+dp"),
        (FSDP | {"megatron_fsdp_main_grads_dtype": "bf16"}, "gradients",
         "bf16"),
        ({"no_async_tensor_model_parallel_allreduce": True}, "overlap", "none"),
        ({"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2},
         "vpp", 2),
        ({"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 4,
          "no_overlap_p2p_communication": True}, "overlap", "oar"),
        ({"pipeline_model_parallel_size": 2, "decoder_first_pipeline_num_layers": 3},
         "stage_layers", "3+5"),
        ({"pipeline_model_parallel_size": 3, "account_for_embedding_in_pipeline_split": True},
         "stage_layers", "2+3+3"),
        ({"pipeline_model_parallel_size": 2, "account_for_loss_in_pipeline_split": True,
          "account_for_embedding_in_pipeline_split": True}, "ends_as_layers", True),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Ett|(tt|)*2t*2L"},
         "stage_layers", "2+2+2+2"),
        ({"recompute_activations": True}, "recompute", "selective"),
        ({"recompute_granularity": "full", "recompute_method": "uniform"}, "recompute", "full"),
        ({"bf16": False}, "precision", "fp32"),
        ({"grad_reduce_in_bf16": True}, "gradients", "bf16"),
        ({"fp16": True, "bf16": False, "accumulate_allreduce_grads_in_fp32": True}, "gradients",
         "fp32"),
        ({"use_tp_pp_dp_mapping": True}, "order", "tp-cp-pp-dp"),
        ({"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 2,
          "tensor_model_parallel_size": 2}, "shard", 4),
        ({"attention_backend": "fused", "transformer_impl": "local"}, "attention", "flash"),
        ({"optimizer": "muon"}, "optimizer", "muon"),
        ({"optimizer": "dist_muon"}, "optimizer", "muon"),
        ({"swiglu": True, "activation_func_fp8_input_store": True}, "fp8_swiglu_input", True),
        ({"use_distributed_optimizer": True, "use_precision_aware_optimizer": True,
          "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, "moments", "bf16"),
        ({"use_distributed_optimizer": True, "use_precision_aware_optimizer": True,
          "optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": True}, "offload",
         "update"),
        ({"num_layers": 8, "cpu_offloading_num_layers": 7}, "offload", "activations"),
    ],
)  # fmt: skip
def test_arguments_become_a_plans_keys(settings: dict[str, Any], key: str, value: object) -> None:
    question = asked(**settings)
    assert question.plan[key] == value


def said(**settings: Any) -> dict[str, str]:
    return {each.name: each.why for each in asked(**settings).changes}


def test_a_fraction_of_an_update_on_the_host_is_a_share_of_it() -> None:
    offload = {"use_distributed_optimizer": True, "optimizer_cpu_offload": True}
    plan = asked(**offload, optimizer_offload_fraction=0.5).plan
    assert (plan["offload"], plan["offload_share"]) == ("update", 0.5)
    assert "offload_share" not in asked(**offload).plan
    assert "offload" not in asked(**offload, optimizer_offload_fraction=0.0).plan


@pytest.mark.parametrize(
    ("settings", "narrow", "is_said"),
    [
        ({}, True, False),
        ({"fp8_recipe": "blockwise", "fp8_format": "e4m3"}, True, False),
        ({"fp8_param_gather": False, "fp8_param": True}, True, False),
        ({"fp8_format": None}, False, False),
        ({"use_distributed_optimizer": False}, False, True),
        ({"optimizer": "dist_muon", "use_distributed_optimizer": False}, False, True),
        ({"optimizer_cpu_offload": True}, False, True),
        (FSDP | {"fp8_recipe": "mxfp8", "fp8_format": "e4m3"}, False, True),
        (FSDP, True, False),
    ],
)
def test_parameters_are_gathered_in_fp8_or_it_is_said_why_not(
    settings: dict[str, Any], narrow: bool, is_said: bool
) -> None:
    given: dict[str, Any] = {"use_distributed_optimizer": True, "fp8_format": "hybrid"}
    given |= {"bf16": True, "fp8_recipe": "tensorwise", "fp8_param_gather": True} | settings
    question = asked(**{key: value for key, value in given.items() if value is not None})
    assert question.plan.get("fp8_params", False) == narrow
    found = [each.why for each in question.changes if "fp8-param" in each.name]
    assert len(found) == is_said


def test_a_weight_of_8_bits_leaves_no_remainders() -> None:
    settings: dict[str, Any] = {"fp8_format": "hybrid", "fp8_recipe": "delayed"}
    plan = asked(**AWARE, **settings, fp8_param_gather=True).plan
    assert (plan["fp8_params"], plan.get("master")) == (True, None)


AWARE = {"use_distributed_optimizer": True, "use_precision_aware_optimizer": True}


@pytest.mark.parametrize(
    ("settings", "moments", "master"),
    [
        ({}, None, "remainders"),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, "bf16", "remainders"),
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}, "fp8", "remainders"),
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"}, "bf16", "remainders"),
        ({"main_params_dtype": "fp16"}, None, "fp16"),
        ({"optimizer_cpu_offload": True}, None, None),
        ({"fp8_format": "hybrid", "fp8_recipe": "mxfp8"}, None, None),
        ({"use_precision_aware_optimizer": False, "exp_avg_dtype": "bf16"}, None, None),
        ({"bf16": False}, None, None),
    ],
)
def test_the_precision_aware_optimizer_has_dtypes_of_its_own(
    settings: dict[str, Any], moments: str | None, master: str | None
) -> None:
    plan = asked(**{**AWARE, **settings}).plan
    assert (plan.get("moments"), plan.get("master")) == (moments, master)


def test_moments_of_two_dtypes_are_taken_as_the_wider_one_and_said() -> None:
    assert "--exp-avg-dtype" in said(**AWARE, exp_avg_dtype="bf16")
    assert "--exp-avg-sq-dtype" in said(**AWARE, exp_avg_sq_dtype="fp8")
    assert not [name for name in said(**AWARE) if "exp-avg" in name or "aware" in name]
    refused = asked(**AWARE, exp_avg_dtype="fp4").refused
    assert [each.name for each in refused] == ["--exp-avg-dtype"]


def test_what_muon_does_otherwise_in_megatron_is_said() -> None:
    plain = said(optimizer="muon", muon_num_ns_steps=5, muon_momentum=0.95)
    assert list(plain) == ["--optimizer"]
    assert_names(plain["--optimizer"], "Muon")
    over_x = {"optimizer": "muon", "tensor_model_parallel_size": 2}
    assert "--muon-tp-mode" in said(**over_x, muon_tp_mode="blockwise")
    assert "--muon-tp-mode" in said(**over_x)
    assert "--muon-tp-mode" not in said(**over_x, muon_tp_mode="duplicated")
    assert_names(said(optimizer="muon", muon_num_ns_steps=6)["--muon-num-ns-steps"], "5")
    assert "--use-distributed-optimizer" in said(optimizer="muon", use_distributed_optimizer=True)
    assert asked(optimizer="dist_muon").plan["zero"] == 1
    assert "zero=1" in said(optimizer="dist_muon")["--optimizer"]
    assert said(muon_num_ns_steps=6, muon_momentum=0.9) == {}
    assert said(optimizer="sgd") == {"--optimizer": "AdamW"}


def test_megatron_deepspeed_is_another_stack() -> None:
    question = asked(
        deepspeed=True,
        zero_stage=1,
        position_embedding_type="alibi",
        embed_layernorm=True,
        activations_checkpoint_method="uniform",
        pad_vocab_size_to=1024,
    )
    assert question.question.stack == "megatron-deepspeed"
    assert question.question.plan == (
        "dp=rest,mbs=1,zero=1,overlap=none,recompute=full,attention=unfused,gradients=fp32"
    )
    assert question.gpt is not None
    assert (question.gpt.positions, question.gpt.embedding_norm) == ("alibi", True)
    assert question.gpt.vocab == 1024


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({}, "ffn", 1024),
        ({"swiglu": True}, "ffn", 640),  # 4 * 256 * 2 / 3 = 682.7, in multiples of 64
        ({"group_query_attention": True}, "kv_heads", 1),
        ({"num_query_groups": 2}, "kv_heads", 0),  # Megatron looks at the switch
        ({"kv_channels": 128}, "head_width", 128),
        ({"position_embedding_type": "rope"}, "rope_base", 10_000),
        ({"vocab_size": None, "vocab_file": "x.json"}, "vocab", 50257),
        ({"vocab_size": None, "tokenizer_type": "HuggingFaceTokenizer",
          "tokenizer_model": "meta-llama/Llama-3.1-8B"}, "vocab", 128256),
        ({"make_vocab_size_divisible_by": 512, "tensor_model_parallel_size": 2}, "vocab", 1024),
    ],
)  # fmt: skip
def test_arguments_become_a_models_fields(settings: dict[str, Any], field: str, value: int) -> None:
    gpt = asked(**settings).gpt
    assert gpt is not None
    assert gpt.value(field) == value


def test_what_says_nothing_is_neither_refused_nor_said_to_change_anything() -> None:
    question = asked(num_experts=None, expert_model_parallel_size=1, tp_comm_overlap=False)
    assert (question.refused, question.changes) == ((), ())
    assert len(question.without_effect) == 2


def test_a_plan_that_simgpt_refuses_is_among_the_refused() -> None:
    assert_names(asked(tensor_model_parallel_size=3).refused[0].why, "tp=3")
    assert asked(devices=None, tensor_model_parallel_size=3).refused == ()


def test_what_cannot_be_read_is_said_in_the_arguments_own_words() -> None:
    with pytest.raises(FrameworkError, check=names("--num-layers", "8x")):
        asked(num_layers="8x")
    with pytest.raises(FrameworkError, check=names("--define LAYERS=VALUE")):
        asked(num_layers="$LAYERS")
    with pytest.raises(FrameworkError, check=names("3", "8 layers", "4 stages")):
        asked(pipeline_model_parallel_size=4, num_layers_per_virtual_pipeline_stage=3)
    with pytest.raises(FrameworkError, check=names("20,000")):
        asked(pipeline_model_parallel_layout="((((t*99)*99)*99)*99)*99")


# Each line has ten times what the one before it has.
GROWING = "a0: &a0 [x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(8)
)


def test_a_yaml_that_grows_or_is_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for text, named in (
        (GROWING, "40,000"),
        ("a: &x [*x]", "YAML"),
        ("[" * 5000, "32"),
        ("a: [1", "YAML"),
        ("a: " + "x" * 300_000, "a.yaml"),
        ("- 1", "a.yaml"),
        ("a: 1", "a.yaml"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FrameworkError, check=names(named)):
            imported([path])


def test_arguments_of_2020_are_those_that_stand_for_them_now() -> None:
    own = {key: value for key, value in SMALL.items() if key != "micro-batch-size"}
    older = {"model-parallel-size": 2, "batch-size": 4, "checkpoint-activations": True}
    described = Described(MEGATRON, {**own, **older, "warmup": 0.01, "checkpoint-num-layers": 1})
    question = job_from([described], devices=16, changed={})
    plan = question.plan
    assert (plan["tp"], plan["mbs"], plan["recompute"]) == (2, 4, "full")
    assert question.unknown == ()
    with pytest.raises(FrameworkError, check=names("--batch-size", "4x")):
        job_from([Described(MEGATRON, own | {"batch-size": "4x"})], devices=16, changed={})
