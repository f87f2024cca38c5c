"""`simgpt export` as people see it, and what it refuses by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.messages import assert_names
from tests.simgpt.face import assert_golden, simgpt

LLAMA = ("export", "llama-3.1-8b", "-n", "64", "--batch", "256")


@pytest.mark.parametrize(
    ("framework", "plan"),
    [
        ("megatron", "tp=4,pp=2,vpp=4,dp=rest,mbs=1,sp=true,recompute=full"),
        ("megatron-bridge", "tp=2,cp=2,dp=rest,mbs=1,sp=true,precision=fp8"),
        ("torchtitan", "tp=2,dp=rest,zero=3,shard=8,mbs=2,sp=true,recompute=selective"),
        ("deepspeed", "dp=rest,zero=3,mbs=1,overlap=ors+oag,gradients=bf16"),
        ("axonn", "tp=2,y=2,z=4,dp=rest,recompute=full"),
    ],
)
def test_an_exported_plan_as_a_person_reads_it(framework: str, plan: str) -> None:
    said = simgpt(*LLAMA, "--plan", plan, "--to", framework)
    assert said.status == 0, said.err
    assert_golden(f"export-{framework}.txt", f"{said.out}\n{said.err}".rstrip() + "\n")


@pytest.mark.parametrize(
    ("framework", "plan", "named"),
    [
        (
            "megatron",
            "y=2,dp=rest",
            ["y=2", "tp", "cp", "dp", "pp"],
        ),
        ("megatron", "z=4,dp=rest", ["Megatron-LM", "z=4"]),
        ("megatron", "dp=rest,matmul_forms=tuned", ["matmul_forms=tuned"]),
        ("megatron", "dp=rest,offload=optimizer", ["offload=optimizer"]),
        ("megatron", "dp=rest,zero=3,reshard=false", ["reshard=false"]),
        ("megatron", "tp=2,dp=rest,order=dp-tp-pp", ["order=dp-tp-pp"]),
        ("megatron-bridge", "pp=2,dp=rest,schedule=gpipe,mbs=1", ["schedule=gpipe"]),
        ("deepspeed", "tp=2,dp=rest", ["DeepSpeed", "tp=2", "dp"]),
        ("deepspeed", "dp=rest,zero=1,shard=8", ["shard=8"]),
        ("torchtitan", "tp=2,dp=rest,zero=3,sp=false", ["sp=true"]),
        ("torchtitan", "dp=rest,zero=2", ["zero=2"]),
        (
            "torchtitan",
            "pp=4,dp=rest,zero=3,mbs=1,stage_layers=7+8+8+9",
            ["torchtitan", "stage_layers=7+8+8+9"],
        ),
        ("torchtitan", "dp=rest,zero=3,overlap=dp", ["overlap=ors"]),
        ("axonn", "pp=2,dp=rest,mbs=1", ["AxoNN", "pp=2"]),
        ("axonn", "tp=2,dp=rest,zero=1", ["zero=1"]),
    ],
)
def test_what_a_framework_has_no_setting_for_is_refused_by_name(
    framework: str, plan: str, named: list[str]
) -> None:
    said = simgpt(*LLAMA, "--plan", plan, "--to", framework)
    assert (said.status, said.out) == (3, "")
    assert_names(said.sentence, *named)


@pytest.mark.parametrize(
    ("framework", "zero", "setting"),
    [
        ("megatron", 1, "--optimizer-offload-fraction 0.25"),
        ("megatron-bridge", 1, "optimizer_offload_fraction: 0.25"),
        ("deepspeed", 3, '"ratio": 0.25'),
    ],
)
def test_the_share_of_an_update_on_the_host_is_written(
    framework: str, zero: int, setting: str
) -> None:
    plan = f"dp=rest,mbs=1,zero={zero},offload=update,offload_share=0.25"
    said = simgpt(*LLAMA, "--plan", plan, "--to", framework)
    assert said.status == 0, said.err
    assert setting in said.out


@pytest.mark.parametrize(
    ("zero", "gradients", "dtype"), [(2, "fp32", True), (3, "fp32", True), (3, "bf16", False)]
)
def test_what_megatrons_fsdp_requires_is_written_and_read_again(
    tmp_path: Path, zero: int, gradients: str, dtype: bool
) -> None:
    plan = f"dp=64,mbs=1,zero={zero},gradients={gradients},recompute=full"
    said = simgpt(*LLAMA, "--plan", plan, "--to", "megatron")
    assert said.status == 0
    (note,) = said.err.splitlines()
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in note
    strategy = ["optim_grads", "optim_grads_params"][zero - 2]
    for flag in (
        "--use-megatron-fsdp",
        f"--data-parallel-sharding-strategy {strategy} ",
        "--ckpt-format fsdp_dtensor",
        "--no-gradient-accumulation-fusion",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
    ):
        assert flag in said.out
    assert ("--megatron-fsdp-main-grads-dtype fp32" in said.out) is dtype
    path = tmp_path / "train.sh"
    path.write_text(f"torchrun pretrain_gpt.py {said.out}", encoding="utf-8")
    again = json.loads(simgpt("import", str(path), "-n", "64", "--json").out)
    assert (again["plan"]["zero"], again["plan"]["gradients"]) == (zero, gradients)
    assert again["plan"]["overlap"] == ("oar+ors+dp" if zero == 2 else "oar+ors+oag")
    assert again["changes"] == []


def test_megatron_is_told_nothing_that_only_its_forks_take() -> None:
    said = simgpt("export", "mpt-7b", "--plan", "dp=8", "--to", "megatron")
    assert_names(said.sentence, "Megatron-LM", "positions=alibi")


def test_torchtitan_has_no_model_of_ones_own() -> None:
    words = ("--plan", "dp=8,zero=3", "--to", "torchtitan")
    assert_names(simgpt("export", "gpt-5b", *words).sentence, "torchtitan")


def test_what_the_stack_assumes_and_a_framework_is_not_told_is_said() -> None:
    plan = ("--plan", "pp=2,dp=rest,mbs=1", "--to", "megatron")
    said = simgpt(*LLAMA, *plan, "--stack", "simgpt")
    assert said.status == 0
    (line,) = said.err.splitlines()
    assert_names(line, "Megatron-LM", "overlap=dp", "simgpt", "overlap=dp+pp", "--plan")


def test_messages_that_nothing_hides_need_no_setting() -> None:
    """Without virtual stages none of Megatron's messages overlap, whatever the plan says."""
    for overlap in ("", ",overlap=dp", ",overlap=oar+dp+pp"):
        plan = f"pp=2,dp=rest,mbs=1{overlap}"
        said = simgpt(*LLAMA, "--plan", plan, "--to", "megatron")
        assert (said.status, said.err) == (0, "")


def test_sizes_that_nobody_gave_are_said() -> None:
    words = ("export", "llama-3.1-8b", "-n", "64", "--plan", "tp=2,dp=rest", "--to", "megatron")
    said = simgpt(*words)
    assert "--global-batch-size 32 " in said.out
    batch, micro_batch = said.err.splitlines()
    assert_names(batch, "batch", "32", "--batch")
    assert_names(micro_batch, "mbs", "1", "mbs=1", "--plan")
    assert_names(simgpt(*words, "--batch", "64").err, "mbs", "2")
    assert "batch" not in simgpt(*words[:5], "mbs=1,gbs=64,tp=2,dp=rest", *words[6:]).err


@pytest.mark.parametrize(
    ("model", "flag"),
    [
        ("qwen2.5-7b", "--add-qkv-bias"),
        ("qwen3-8b", "--qk-layernorm"),
        ("nemotron-4-340b", "--squared-relu"),
        ("llama-3.1-8b", ""),
    ],
)
def test_what_a_model_has_beyond_its_fields_has_its_flag(model: str, flag: str) -> None:
    words = ("--plan", "dp=64,mbs=1", "--batch", "64", "--to", "megatron")
    said = simgpt("export", model, *words)
    assert (said.status, said.err) == (0, "")
    flags = ("--add-qkv-bias", "--qk-layernorm", "--squared-relu")
    assert [each for each in flags if each in said.out] == [flag][: bool(flag)]


def test_a_config_of_hugging_face_says_its_biases(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2}
    sizes |= {"intermediate_size": 512, "vocab_size": 512, "max_position_embeddings": 128}
    path = tmp_path / "config.json"
    words = ("--plan", "dp=8,mbs=1", "--batch", "8", "--to", "megatron")
    path.write_text(json.dumps({"model_type": "qwen2", **sizes}), encoding="utf-8")
    assert "--add-qkv-bias" in simgpt("export", str(path), *words).out
    llama = {"model_type": "llama", "attention_bias": True, **sizes}
    path.write_text(json.dumps(llama), encoding="utf-8")
    said = simgpt("export", str(path), *words)
    assert "--add-qkv-bias" not in said.out
    assert_names(said.err, "biases")


def test_the_attention_of_a_stack_is_its_backend() -> None:
    words = (*LLAMA, "--plan", "dp=rest,mbs=1", "--to", "megatron")
    assert "--attention-backend fused " in simgpt(*words).out
    assert "--attention-backend flash " in simgpt(*words, "--stack", "simgpt").out


def test_exported_settings_stand_in_json() -> None:
    said = simgpt(*LLAMA, "--plan", "dp=rest,mbs=1", "--to", "megatron", "--json")
    record = json.loads(said.out)
    assert record["devices"] == 64
    assert record["settings"]["use-distributed-optimizer"] is True
