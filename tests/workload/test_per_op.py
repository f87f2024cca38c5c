"""Layers that run again but for what chosen ops give: torchtitan's selective recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.engine.whole_step import step_bytes
from workload.errors import PlanError
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import Op
from workload.passes.stack import StackBehaviour
from workload.plan_text import parse_plan
from workload.program import Program

LAMA = GPT.of(
    name="lama",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    ffn=64,
    sequence=16,
    vocab=64,
    positions="rope",
    norm="rmsnorm",
    activation="swiglu",
    biases=False,
)
MIXED = LAMA.changed(name="mixed", experts=4, topk=2, expert_ffn=48)
LATENT = LAMA.changed(kv_heads=0, q_rank=24, kv_rank=16, rope_width=8, head_width=8)
TOKENS = 16


def program_of(gpt: GPT, rest: str = "", batch: int = 2) -> Program:
    plan = parse_plan(f"dp=2,mbs=1,recompute=per_op{rest}", batch=batch)
    return lower(gpt, plan, behaviour=StackBehaviour(early_stop=True))


def again(program: Program, label: str) -> list[Op]:
    return [
        op for op in program.ops if op.is_recomputed and op.label == label and op.part.layer == 0
    ]


def kept_bytes(program: Program, layer: int = 0) -> int:
    """What a layer's forward pass leaves for its backward pass."""
    born = {
        name: op.part.layer
        for op in program.ops
        for name in op.writes
        if op.block.phase == "forward" and not program.buffers[name].persistent
    }
    gone = {
        name: op for op, names in zip(program.ops, program.releases, strict=True) for name in names
    }
    own = [n for n, at in born.items() if at == layer and gone[n].block.phase != "forward"]
    return sum(program.buffers[name].nbytes for name in own)


def test_every_second_product_runs_again_and_attention_does_not() -> None:
    program = program_of(LAMA)
    (qkv,), (up,), (out,) = (again(program, f"{name}.matmul") for name in ("qkv", "up", "out"))
    assert (qkv.attributes["n"], up.attributes["n"], out.attributes["n"]) == (16, 64, 32)
    assert qkv.flops == 2 * TOKENS * 16 * 32  # of keys alone
    assert up.flops == 2 * TOKENS * 64 * 32  # of one of gate and up
    assert not again(program, "attention") + again(program, "down.matmul")
    assert again(program, "norm1")
    assert again(program, "rope")
    assert again(program, "swiglu")


def test_a_layer_keeps_its_input_queries_values_the_context_and_one_of_gate_and_up() -> None:
    widths = 32 + (32 + 16) + 32 + 64  # the input of the second layer, which the first one makes
    sums = 4 * 4 * TOKENS  # of attention, in fp32 for each head
    assert kept_bytes(program_of(LAMA)) == 2 * TOKENS * widths + sums


def test_the_fifth_product_is_kept_whole_and_what_follows_reads_it() -> None:
    """Queries, keys and values, the output of attention, the first one of an MLP without gate."""
    program = program_of(replace(LAMA, activation="gelu"))
    found = [bool(again(program, f"{name}.matmul")) for name in ("qkv", "out", "up", "down")]
    assert found == [True, True, False, False]
    (up, *_) = (op for op in program.ops if op.label == "up.matmul")
    (gelu,) = again(program, "gelu")
    assert gelu.reads == up.writes


def test_experts_run_again_whole() -> None:
    program = program_of(MIXED)
    (up,) = again(program, "experts.up.matmul")
    (forward, *_) = (op for op in program.ops if op.label == "experts.up.matmul")
    assert up.flops == forward.flops
    assert kept_bytes(program) == kept_bytes(program_of(LAMA)) - 2 * TOKENS * 64


def test_rows_that_came_to_experts_are_kept() -> None:
    program = program_of(MIXED, ",ep=2")
    assert not again(program, "dispatch.exchange")


def test_of_latent_attention_the_fifth_product_is_kept_whole() -> None:
    labels = [f"{name}.matmul" for name in ("q_down", "q_up", "kv_down", "kv_up", "out")]
    found = [bool(again(program_of(LATENT), label)) for label in labels]
    assert found == [False, True, False, True, False]


def test_what_is_reduced_and_scattered_is_not_multiplied_again() -> None:
    program = program_of(LAMA, ",tp=2,sp=true")
    assert not again(program, "out.matmul") + again(program, "out.reduce")
    assert again(program, "qkv.rows.gather")


@pytest.mark.parametrize("gpt", [LAMA, MIXED, LATENT], ids=lambda gpt: gpt.name)
def test_it_lies_between_all_and_nothing(gpt: GPT) -> None:
    plans = [parse_plan(f"dp=2,mbs=1,recompute={w}", batch=4) for w in
             ("none", "per_op", "full")]  # fmt: skip
    programs = [lower(replace(gpt, layers=6), plan) for plan in plans]
    flops = [program.hardware_flops for program in programs]
    peaks = [program.peak.total_bytes for program in programs]
    assert flops == sorted(flops)
    assert len({*flops}) == 3
    assert peaks == sorted(peaks, reverse=True)
    assert len({*peaks}) == 3
    assert len({program.model_flops for program in programs}) == 1


def test_many_layers_are_those_of_the_whole_program() -> None:
    gpt, behaviour = replace(MIXED, layers=16), StackBehaviour(early_stop=True)
    plan = parse_plan("dp=2,mbs=1,zero=3,recompute=per_op,overlap=all", batch=8)
    program = lower(gpt, plan, behaviour=behaviour)
    assert step_bytes(gpt, plan, behaviour) == program.peak.total_bytes


def test_it_names_no_number_of_layers() -> None:
    with pytest.raises(PlanError, match="full:N"):
        parse_plan("recompute=per_op:2")
