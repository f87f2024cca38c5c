"""`simgpt export` as people see it, and what it refuses by name."""

from __future__ import annotations

import json

import pytest

from tests.simgpt.face import assert_golden, simgpt

LLAMA = ("export", "llama-3.1-8b", "-n", "64", "--batch", "256")


@pytest.mark.parametrize(
    ("framework", "plan"),
    [
        ("megatron", "x=4,pipe=2,interleave=4,data=rest,micro_batch=1,sp=true,recompute=full"),
        ("megatron-bridge", "x=2,cp=2,data=rest,micro_batch=1,sp=true,precision=fp8"),
        ("torchtitan", "x=2,data=rest,zero=3,shard=8,micro_batch=2,sp=true,recompute=selective"),
        ("deepspeed", "data=rest,zero=3,micro_batch=1,overlap=ors+oag,gradients=bf16"),
        ("axonn", "x=2,y=2,z=4,data=rest,recompute=full"),
    ],
)
def test_an_exported_plan_as_a_person_reads_it(framework: str, plan: str) -> None:
    said = simgpt(*LLAMA, "--plan", plan, "--to", framework)
    assert said.status == 0, said.err
    assert_golden(f"export-{framework}.txt", f"{said.out}\n{said.err}".rstrip() + "\n")


@pytest.mark.parametrize(
    ("framework", "plan", "sentence"),
    [
        ("megatron", "y=2,data=rest", "has no setting for y=2; of the axes it has x, data, pipe"),
        ("megatron", "z=4,data=rest", "Megatron-LM has no setting for z=4"),
        ("megatron", "data=rest,matmul_forms=tuned", "no setting for matmul_forms=tuned"),
        ("megatron", "data=rest,offload=optimizer", "no setting for offload=optimizer"),
        ("megatron", "data=rest,zero=3,reshard=false", "no setting for reshard=false"),
        ("megatron", "pipe=2,data=rest,micro_batch=1,overlap=pp", "no setting for overlap=pp"),
        ("megatron", "x=2,data=rest,order=data-x-y-z-pipe", "no setting for order="),
        ("megatron-bridge", "pipe=2,data=rest,schedule=gpipe,micro_batch=1", "schedule=gpipe"),
        ("deepspeed", "x=2,data=rest", "DeepSpeed has no setting for x=2; of the axes it has data"),
        ("deepspeed", "data=rest,zero=1,shard=8", "has no setting for shard=8"),
        ("torchtitan", "x=2,data=rest,zero=3", "no setting for sequence_parallel=false"),
        ("torchtitan", "data=rest,zero=2", "no setting for zero=2"),
        ("torchtitan", "data=rest,zero=3,overlap=dp", "no setting for overlap=none"),
        ("axonn", "pipe=2,data=rest,micro_batch=1", "AxoNN has no setting for pipe=2"),
        ("axonn", "x=2,data=rest,zero=1", "zero=1"),
    ],
)
def test_what_a_framework_has_no_setting_for_is_refused_by_name(
    framework: str, plan: str, sentence: str
) -> None:
    said = simgpt(*LLAMA, "--plan", plan, "--to", framework)
    assert (said.status, said.out) == (3, "")
    assert sentence in said.sentence


def test_megatron_is_told_nothing_that_only_its_forks_take() -> None:
    said = simgpt("export", "mpt-7b", "--plan", "data=8", "--to", "megatron")
    assert "Megatron-LM has no setting for positions=alibi" in said.sentence


def test_torchtitan_has_no_model_of_ones_own() -> None:
    words = ("--plan", "data=8,zero=3", "--to", "torchtitan")
    assert "the model is none that it names" in simgpt("export", "gpt-5b", *words).sentence


def test_what_the_stack_assumes_and_a_framework_is_not_told_is_said() -> None:
    said = simgpt(*LLAMA, "--plan", "pipe=2,data=rest,micro_batch=1", "--to", "megatron")
    assert said.status == 0
    assert said.err == "overlap=dp+pp of the stack megatron-core is dp here\n"


def test_exported_settings_stand_in_json() -> None:
    said = simgpt(*LLAMA, "--plan", "data=rest,micro_batch=1", "--to", "megatron", "--json")
    record = json.loads(said.out)
    assert record["devices"] == 64
    assert record["settings"]["use-distributed-optimizer"] is True
