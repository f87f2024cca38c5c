"""What stacks hold in memory unlike our executor: FSDP's shards, DeepSpeed's copies and buckets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.engine.whole_step import step_bytes
from simulator.predict import predict
from simulator.stacks import load_stack, stack_names
from simulator.stacks.job import job_of
from topologies.machine_files import load_machine
from workload.gpt import GPT, find_model
from workload.held import Held
from workload.lowering import lower
from workload.op import ROLES, STEP, WEIGHT_GATHER
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

LAMA = GPT.of(
    name="lama",
    layers=4,
    hidden=32,
    heads=4,
    ffn=64,
    sequence=16,
    vocab=64,
    positions="rope",
    norm="rmsnorm",
    activation="swiglu",
    biases=False,
    tied=False,
)
NORMS = (2 * 4 + 1) * 32
WEIGHTS = LAMA.parameters - NORMS  # which zero shards; norms are whole everywhere
LAYER = (4 * 32 + 3 * 64) * 32  # of one layer


def plan_of(rest: str, batch: int = 4) -> Plan:
    return parse_plan(f"dp=4,mbs=1,{rest}", batch=batch)


def held_in(program: Program, role: str) -> list[int]:
    return [int(each) for each in program.levels[ROLES.index(role)]]


def of_stack(plan: Plan, **held: Any) -> Program:
    return lower(LAMA, plan, behaviour=StackBehaviour(held=Held(**held)))


def test_a_shard_that_is_the_master_has_16_bytes_a_parameter() -> None:
    plan = plan_of("zero=3,gradients=bf16")
    usual, fsdp = of_stack(plan), of_stack(plan, sharded_masters=True)
    shard = WEIGHTS // 4
    assert held_in(usual, "optimizer")[0] == 12 * (shard + NORMS)
    for role, sharded, whole in (
        ("parameters", 4, 2),
        ("gradients", 4, 2),
        ("optimizer", 8, 12),
    ):
        assert held_in(fsdp, role)[0] == sharded * shard + whole * NORMS


def test_masters_are_gathered_in_the_precision_of_training() -> None:
    plan = plan_of("zero=3")
    gathers = [
        [(op.nbytes, op.dtype) for op in program.ops if op.purpose == WEIGHT_GATHER]
        for program in (of_stack(plan), of_stack(plan, sharded_masters=True))
    ]
    assert gathers[0] == gathers[1]


def test_a_stack_without_shards_keeps_its_weights_in_the_precision_of_training() -> None:
    for rest in ("zero=0", "zero=2"):
        plan = plan_of(rest)
        assert of_stack(plan, sharded_masters=True).buffers == of_stack(plan).buffers


@pytest.mark.parametrize(("zero", "whole"), [(0, 4), (1, 4), (2, 1)])
def test_the_update_copies_all_gradients_of_a_rank_to_fp32(zero: int, whole: int) -> None:
    plan = plan_of(f"zero={zero},gradients=bf16")
    shard = WEIGHTS // 4
    copied = shard if zero else WEIGHTS
    reduced = 2 * LAYER // 4 if zero == 1 else 0  # the last layer's, on its way into the copy
    expected = 2 * (whole * shard + NORMS) + reduced + 4 * (copied + NORMS)
    assert max(held_in(of_stack(plan, step_copies=True), "gradients")) == expected


def test_gradients_in_fp32_are_copied_where_zero_partitions_them_alone() -> None:
    for zero, copied in ((1, 0), (2, 4)):
        plan = plan_of(f"zero={zero},gradients=fp32")
        more = [max(held_in(of_stack(plan, step_copies=own), "gradients")) for own in (False, True)]
        assert more[1] - more[0] == copied * (WEIGHTS // 4 + NORMS)


def test_under_zero_3_no_more_than_a_sub_group_is_copied() -> None:
    plan = plan_of("zero=3,gradients=bf16")
    two = 2 * (LAYER // 4 + 2 * 32)
    program = of_stack(plan, step_copies=True, sub_group=two)
    gradients = held_in(program, "gradients")
    ends = 2 * LAMA.vocab * 32 // 4 + 32  # which come first, and with the first two layers
    assert max(gradients) - gradients[0] == 4 * (ends + two)


@pytest.mark.parametrize("sub_group", [0, 1, 20 * LAYER // 4, 10**9])
def test_many_layers_are_updated_as_the_whole_program_says(sub_group: int) -> None:
    gpt = replace(LAMA, layers=40)
    plan = plan_of("zero=3,gradients=bf16,recompute=full")
    behaviour = StackBehaviour(held=Held(step_copies=True, sub_group=sub_group, temporaries=1))
    assert (
        step_bytes(gpt, plan, behaviour) == lower(gpt, plan, behaviour=behaviour).peak.total_bytes
    )


@pytest.mark.parametrize(
    ("rest", "expected"), [("overlap=none", 1), ("overlap=dp", 2), ("overlap=ors", 2)]
)
def test_buckets_are_there_while_gradients_are_reduced(rest: str, expected: int) -> None:
    plan, size = plan_of(f"zero=2,{rest}", batch=8), 10**6
    program, usual = of_stack(plan, bucket=size), of_stack(plan)
    levels, without = (held_in(each, "workspace") for each in (program, usual))
    for op, level, less in zip(program.ops, levels, without, strict=True):
        backward = op.block.micro_batch >= 0 and op.block.work == "backward"
        if not op.communicates:
            assert level - less == (expected * 2 * size if backward else 0)


def test_in_a_pipeline_the_bucket_is_that_of_the_end_of_the_step() -> None:
    """There is one, since no backward pass is left beside which gradients would be reduced."""
    plan = parse_plan("dp=2,pp=2,mbs=1,zero=1,gradients=bf16,overlap=dp", batch=8)
    program, usual = of_stack(plan, bucket=10**6), of_stack(plan)
    levels, without = (held_in(each, "workspace") for each in (program, usual))
    more = zip(program.ops, levels, without, strict=True)
    assert {(op.block == STEP, n - m) for op, n, m in more if n > m} == {(True, 2 * 10**6)}


def test_under_zero_3_the_bucket_is_there_all_the_time() -> None:
    plan = plan_of("zero=3")
    levels = [of_stack(plan, bucket=size).levels.sum(axis=0) for size in (0, 10**6)]
    assert {*(levels[1] - levels[0]).tolist()} == {2 * 10**6}


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("stack", ["deepspeed", "megatron-deepspeed"])
def test_deepspeed_collects_gradients_in_a_bucket_of_a_gigabyte(stack: str, zero: int) -> None:
    """500 million elements of 2 bytes, however small the model is."""
    job = job_of(LAMA, f"dp=4,mbs=1,zero={zero}", load_stack(stack), batch=4)
    found = predict(job.gpt, job.plan, load_machine("dgx-a100"), stack=job.stack).memory
    assert found.peak_bytes == pytest.approx(1e9, rel=1e-3)


@pytest.mark.parametrize(("zero", "parts"), [(0, 1), (2, 4), (3, 4)])
def test_an_update_that_is_not_fused_holds_the_roots_of_all_that_it_updates(
    zero: int, parts: int
) -> None:
    plan = plan_of(f"zero={zero},gradients=bf16")
    levels = held_in(of_stack(plan, step_copies=True, temporaries=1), "workspace")
    usual = held_in(of_stack(plan, step_copies=True), "workspace")
    more = [one - other for one, other in zip(levels, usual, strict=True)]
    assert max(more) == 4 * (WEIGHTS // parts + NORMS)
    program = of_stack(plan, step_copies=True, temporaries=1)
    assert {op.block == STEP for op, n in zip(program.ops, more, strict=True) if n} == {True}


@pytest.mark.parametrize("rest", ["dp=4,zero=3", "dp=2,pp=2,zero=0"])
def test_gradients_that_are_freed_are_there_from_the_first_backward_pass_to_the_update(
    rest: str,
) -> None:
    plan = parse_plan(f"mbs=1,{rest}", batch=8)
    levels = held_in(of_stack(plan, frees_gradients=True), "gradients")
    usual = held_in(of_stack(plan), "gradients")
    first = [op.block.phase == "backward" and op.flops > 0 for op in of_stack(plan).ops].index(True)
    assert {*levels[:first]} == {0} != {*usual[:first]}
    assert max(levels) == max(usual)


def test_every_stack_on_deepspeed_has_its_copies_and_every_one_of_fsdp_its_masters() -> None:
    for name in stack_names():
        stack = load_stack(name)
        assert bool(stack.memory.get("step_copies")) == (stack.family == "deepspeed")
        assert bool(stack.memory.get("sharded_masters")) == (stack.family == "fsdp")


def test_32_billion_parameters_do_not_fit_8_h200_under_zero_2_to_spare() -> None:
    gpt, machine = replace(find_model("qwen3-32b"), sequence=1024), load_machine("1x8xH200")
    text = "zero=2,dp=8,mbs=1,recompute=full"
    job = job_of(gpt, text, load_stack("megatron-deepspeed"), batch=8)
    found = predict(job.gpt, job.plan, machine, stack=job.stack).memory
    assert found.peak_bytes >= 129.7 * 2**30  # 2 bytes a parameter, and 18 over the ranks
    assert found.capacity_bytes < 1.1 * found.peak_bytes
