"""Context parallelism as PyTorch does it: gathered keys in the steps of a ring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.stacks.stack_files import load_stack
from topologies.machine_files import load_machine
from workload.gpt import GPT, find_model
from workload.lowering.lower import lower
from workload.op import Op
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

GPT_8B = replace(find_model("llama-3.1-8b"), layers=1, sequence=8192)
WORDS = "cp=4,dp=2,context_kind=all_gather,batch=2,mbs=1,zero=3"
STEPS = StackBehaviour(context_steps=True)
TOKENS, WIDTH, KEYS = 2048, 4096, 2048  # of a rank; of all heads; of keys and values of 8 of 32


def programs(words: str = WORDS, gpt: GPT = GPT_8B) -> tuple[Program, Program]:
    """One as it is lowered, and as PyTorch runs it."""
    plan = parse_plan(words)
    return lower(gpt, plan), lower(gpt, plan, behaviour=STEPS)


def of_kind(program: Program, kind: str, part: str = "") -> list[Op]:
    return [op for op in program.ops if op.kind == kind and part in op.name]


def test_steps_do_the_same_flops_and_only_the_first_has_the_mask() -> None:
    plain, found = programs()
    for kind in ("attention", "attention_grad"):
        (whole,), parts = of_kind(plain, kind), of_kind(found, kind)
        assert [op.flops for op in parts] == [whole.flops // 4] * 4
        assert [op.attributes["causal"] for op in parts] == [True, False, False, False]
        assert {op.attributes["sequence"] for op in parts} == {TOKENS}


def test_keys_of_all_heads_come_in_one_gather_beside_the_first_step() -> None:
    """Keys and values of 32 heads for 8192 tokens in bf16."""
    _, found = programs()
    for gather in of_kind(found, "all_gather", "attention"):
        assert gather.nbytes == 2 * 8192 * 2 * WIDTH
        assert gather.stream == "cp"
    first, *later = of_kind(found, "attention")
    gathered = of_kind(found, "all_gather", "attention.kv")[0].writes[0]
    assert gathered not in first.reads
    assert all(gathered in op.reads for op in later)
    assert found.buffers[gathered].shape == (8192, 2 * WIDTH)


def test_contexts_are_merged_in_fp32() -> None:
    _, found = programs()
    merges = of_kind(found, "merge_attention")
    assert [op.nbytes for op in merges] == [10 * TOKENS * WIDTH] * 3
    first, *later = of_kind(found, "attention")
    assert not {*first.writes} & {name for op in later for name in op.writes}
    assert [op.reads for op in merges] == [first.writes + op.writes for op in later]
    assert {op.writes for op in merges} == {first.writes}


def test_gradients_of_keys_go_around_in_fp32_and_come_home() -> None:
    plain, found = programs()
    assert of_kind(plain, "reduce_scatter", "attention")
    assert not of_kind(found, "reduce_scatter", "attention")
    shifts = of_kind(found, "ring_shift")
    assert [op.nbytes for op in shifts] == [4 * TOKENS * 2 * WIDTH] * 4
    adds = of_kind(found, "add", "attention.grad")
    assert [shift.reads[0] for shift in shifts] == [add.writes[1] for add in adds]
    assert [add.reads[-1] for add in adds[1:]] == [shift.writes[0] for shift in shifts[:-1]]
    assert [op.nbytes for op in adds] == [10 * TOKENS * (2 * WIDTH + WIDTH)] * 4
    (put,) = of_kind(found, "put_keys")
    assert put.reads[0] == shifts[-1].writes[0]
    assert put.nbytes == TOKENS * KEYS * (2 + 4 * 4)  # 4 of each head in fp32 summed to one in bf16


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (WORDS, {"window": 1024}),
        (WORDS, {"document": 2048}),
        (WORDS, {"documents": "4096+2x2048"}),
        (WORDS, {"documents": "4096+2x2048", "window": 1024}),
        (WORDS.replace("all_gather", "ring"), {}),
    ],
)
def test_windows_documents_and_rings_stay_as_they_are(words: str, limits: dict[str, Any]) -> None:
    """PyTorch's steps know the usual mask alone."""
    plain, found = programs(words, GPT_8B.changed(**limits))
    assert plain.ops == found.ops
    assert plain.buffers == found.buffers


def test_torchtitan_runs_them_so() -> None:
    plan = Plan.of(cp=4, dp=2, context_kind="all_gather", batch=2, mbs=1)
    for name, so in (("torchtitan", True), ("torchtitan-eager", True), ("fsdp", False)):
        kernels = load_stack(name).kernels(GPT_8B, plan, load_machine("dgx-h100"))
        assert kernels.behaviour.context_steps == so
