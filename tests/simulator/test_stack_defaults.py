"""Keys of a plan that a stack gives where other keys are as its rules say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.stacks import StackError, load_stack
from simulator.stacks.job import Job, job_of
from simulator.stacks.searched import kept
from simulator.stacks.where import following
from workload.gpt import GPT, find_model

GPT_20B = find_model("gpt-20b")
WITH_SHARDED_ROWS = (  # whose recipes shard rows over the ranks of x
    *("megatron-core", "megatron-core-2023", "megatron-lm-2022", "megatron-lm-2023"),
    *("nemo", "nemo@23.05", "nemo@24.05", "nemo+deepep", "primus", "torchtitan", "nanotron"),
)
RULES = """
base = "megatron-core"
title = "ours"
source = "ours"

[[plan.where]]
when = {zero = 3}
overlap = ["dp", "ors", "oag"]
"""


def job(text: str, stack: str, gpt: GPT = GPT_20B) -> Job:
    return job_of(gpt, text, load_stack(stack), devices=64, batch=64)


@pytest.mark.parametrize("stack", WITH_SHARDED_ROWS)
def test_recipes_with_tensor_parallelism_have_sequence_parallelism(stack: str) -> None:
    found = job("tp=4,dp=rest,mbs=1", stack)
    assert found.plan.sp
    assert ("sp", "true") in found.assumed
    assert not job("dp=rest,mbs=1", stack).plan.sp


@pytest.mark.parametrize("stack", ["simgpt", "gpt-neox", "megatron-lm-2021", "megatron-deepspeed"])
def test_stacks_of_other_recipes_do_not(stack: str) -> None:
    assert not job("tp=4,dp=rest,mbs=1", stack).plan.sp


def test_what_the_user_says_of_it_counts() -> None:
    found = job("tp=4,dp=rest,mbs=1,sp=false", "megatron-core")
    assert not found.plan.sp
    assert "sp" not in dict(found.assumed)


def test_a_sequence_that_x_does_not_divide_is_left_whole_and_that_is_said() -> None:
    odd = replace(GPT_20B, sequence=1001)
    found = job("tp=4,dp=rest,mbs=1", "megatron-core", odd)
    assert not found.plan.sp
    assert ("sp", "false") in found.assumed


def test_experts_that_need_sequence_parallelism_have_it_unasked() -> None:
    found = job("tp=4,ep=4,etp=1,dp=rest,mbs=1", "megatron-core", find_model("mixtral-8x7b"))
    assert found.plan.sp


def test_the_text_of_a_plan_without_it_reads_as_that_plan() -> None:
    stack = load_stack("megatron-core")
    plan = job("tp=4,dp=rest,mbs=1,sp=false", "megatron-core").plan
    text = stack.text(plan)
    assert "sp=false" in text
    assert job_of(GPT_20B, text, stack, devices=64, batch=64).plan == plan


def test_recipes_of_nemo_in_2023_recompute_attention_where_they_split_layers() -> None:
    assert job("tp=4,dp=rest,mbs=1", "nemo@23.05").plan.training.recompute == "selective"
    assert job("dp=rest,mbs=1", "nemo@23.05").plan.training.recompute == "none"


def test_a_rule_follows_the_plan_and_stands_beside_those_of_the_base(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(RULES)
    assert job("tp=4,dp=rest,mbs=1,zero=3", str(file)).plan.training.overlap == ("ors", "oag", "dp")
    found = job("tp=4,dp=rest,mbs=1", str(file)).plan
    assert (found.training.overlap, found.sp) == (("oar", "dp", "pp"), True)


def test_a_file_that_says_a_key_does_away_with_the_rules_of_its_base(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    table = "[plan]\nsequence_parallel = false\n"
    file.write_text(f'base = "megatron-core"\ntitle = "ours"\nsource = "ours"\n{table}')
    assert not job("tp=4,dp=rest,mbs=1", str(file)).plan.sp


def test_a_search_fixes_what_a_rule_gives_for_what_is_fixed(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(RULES)
    stack = load_stack(str(file))
    assert kept(stack, {"zero": 3})["overlap"] == ("ors", "oag", "dp")
    assert kept(stack, {"zero": 1})["overlap"] == ("oar", "dp", "pp")
    assert "sp" not in kept(stack, {"tp": 4})


def test_a_change_of_a_plan_leaves_what_the_user_said_of_other_keys() -> None:
    """Where the plan has what the stack gave, it gets what the stack gives behind the change."""
    rules = load_stack("megatron-core").plan
    own = job("tp=4,dp=rest,mbs=1,zero=2,sp=false,overlap=dp", "megatron-core").plan
    assert following(rules, own, {"zero": 3}) == {"zero": 3}
    given = job("tp=4,dp=rest,mbs=1,zero=2", "megatron-core").plan
    overlap = ("oar", "ors", "oag", "dp", "pp")
    expected = {"zero": 3, "overlap": overlap, "sp": True}
    assert following(rules, given, {"zero": 3}) == expected


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("when = {zero = 3}\ntp = 2", "tp"),
        ("when = {zeros = 3}\nzero = 2", "zeros"),
        ("zero = 3", "when"),
        ("when = {x = 2}\ndata = 3", "dp"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(tmp_path: Path, rule: str, named: str) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(f'base = "nemo"\ntitle = "ours"\nsource = "ours"\n[[plan.where]]\n{rule}\n')
    with pytest.raises(StackError, match=named):
        load_stack(str(file))
