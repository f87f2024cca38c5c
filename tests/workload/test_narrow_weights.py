"""Weights of 8 bits: what a rank holds and gathers of them, and who refuses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.errors import LaunchError
from executor.launching.device_use import check_host_use
from simulator.predict import predict
from simulator.search.problem import SearchProblem, unproved
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.machine_files import load_machine
from workload.errors import PlanError
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import ROLES
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.recipes.cast_kernels import CastKernels

LAYERS = 2
LLAMA = replace(find_model("llama-3.1-8b"), sequence=512, layers=LAYERS)
LINEARS = LAYERS * 218_103_808  # parameters of the linears of layers
SMALL = (2 * LAYERS + 1) * 4096  # of norms
OTHERS = 2 * 128_256 * 4096 + SMALL  # two tables, and norms
HOPPER = StackBehaviour(casts=CastKernels(transposes=True))
BLACKWELL = PLAIN_BEHAVIOUR


def plan_of(words: str, *, narrow: bool = True) -> Plan:
    text = f"dp=8,mbs=1,fp8_params={str(narrow).lower()},{words}"
    return parse_plan(text, batch=8)


def held(program: Program, role: str = "parameters") -> int:
    return int(program.levels[ROLES.index(role), 0])


def scales_of(program: Program) -> int:
    """The bytes of scales of weights."""
    every = (b for b in program.buffers.values() if b.name.endswith(".scale"))
    return sum(b.nbytes for b in every if b.persistent)


def gathered(program: Program, purpose: str) -> int:
    return sum(op.nbytes for op in program.ops if op.purpose == purpose)


@pytest.mark.parametrize(
    ("words", "behaviour", "copies"),
    [
        ("zero=1,precision=fp8", BLACKWELL, 1),
        ("zero=2,precision=fp8", HOPPER, 2),
        ("zero=1,recipe=fp8-tensorwise", PLAIN_BEHAVIOUR, 1),
        ("zero=1,recipe=fp8-delayed", PLAIN_BEHAVIOUR, 1),
        ("zero=0,recipe=fp8-blockwise", PLAIN_BEHAVIOUR, 1),
        ("zero=1,recipe=mxfp8", PLAIN_BEHAVIOUR, 2),
    ],
)
def test_a_weight_of_a_linear_is_its_copies_of_8_bits_alone(
    words: str, behaviour: StackBehaviour, copies: int
) -> None:
    program = lower(LLAMA, plan_of(words), behaviour=behaviour)
    assert held(program) == copies * LINEARS + 2 * OTHERS + scales_of(program)
    assert program.parameters == LLAMA.parameters


@pytest.mark.parametrize("recipe", ["fp8-tensorwise", "fp8-blockwise", "mxfp8"])
def test_a_recipe_leaves_out_the_copy_of_16_bits(recipe: str) -> None:
    words = f"zero=1,recipe={recipe}"
    levels = [held(lower(LLAMA, plan_of(words, narrow=own))) for own in (False, True)]
    assert levels[0] - levels[1] == 2 * LINEARS


@pytest.mark.parametrize(
    ("words", "behaviour", "item"),
    [
        ("zero=1,precision=fp8", HOPPER, 1),
        ("zero=1,recipe=fp8-tensorwise", PLAIN_BEHAVIOUR, 1),
        ("zero=2,recipe=fp8-blockwise", PLAIN_BEHAVIOUR, 1),
        ("zero=1,recipe=mxfp8", PLAIN_BEHAVIOUR, 2),  # both its copies
    ],
)
def test_updated_weights_are_gathered_in_8_bits(
    words: str, behaviour: StackBehaviour, item: int
) -> None:
    program = lower(LLAMA, plan_of(words), behaviour=behaviour)
    expected = item * LINEARS + 2 * (OTHERS - SMALL)
    assert gathered(program, "parameter_gather") == expected


@pytest.mark.parametrize(
    ("words", "behaviour"),
    [
        ("zero=3,precision=fp8", BLACKWELL),
        ("zero=3,precision=fp8", HOPPER),
        ("zero=3,recipe=fp8-tensorwise", PLAIN_BEHAVIOUR),
    ],
)
def test_parts_are_held_and_gathered_in_8_bits(words: str, behaviour: StackBehaviour) -> None:
    program = lower(LLAMA, plan_of(words), behaviour=behaviour)
    parts = LINEARS // 8 + 2 * ((OTHERS - SMALL) // 8 + SMALL)
    assert held(program) == parts + scales_of(program)
    tables = 2 * (OTHERS - SMALL)  # gathered once each, layers for both passes
    assert gathered(program, "weight_gather") == 2 * LINEARS + tables


@pytest.mark.parametrize(
    ("words", "behaviour", "item"),
    [
        ("zero=1,precision=fp8", BLACKWELL, 1),
        ("zero=0,precision=fp8", HOPPER, 1),
        ("zero=1,recipe=mxfp8", PLAIN_BEHAVIOUR, 2),
        ("zero=2,recipe=fp8-blockwise", PLAIN_BEHAVIOUR, 1),
    ],
)
def test_the_update_writes_what_is_kept(words: str, behaviour: StackBehaviour, item: int) -> None:
    """It reads an fp32 gradient, two moments and a master copy, and writes the last three; what is
    no part of a weight it reads as well."""
    program = lower(LLAMA, plan_of(words), behaviour=behaviour)
    share = 1 if "zero=0" in words else 8
    moved = sum(op.nbytes for op in program.ops if op.kind == "adamw")
    linears, others = LINEARS // share, (OTHERS - SMALL) // share
    again = share == 1
    whole = (28 + (1 + again) * item) * linears + (30 + 2 * again) * others + 32 * SMALL
    assert moved == whole


def test_largest_values_are_those_of_master_copies() -> None:
    program = lower(LLAMA, plan_of("zero=1,recipe=fp8-tensorwise"))
    found = [op for op in program.ops if op.kind == "amax" and op.purpose == "weight_cast"]
    assert {op.reads[0].rpartition(".")[2] for op in found} == {"master"}
    assert sum(op.nbytes for op in found) == 4 * LINEARS // 8 + 4 * len(found)
    assert not [op for op in program.ops if op.kind == "quantise" and op.purpose == "weight_cast"]


def test_a_stack_holds_weights_of_8_bits_where_it_would_hold_both() -> None:
    """On a B200, whose matmuls want no transposed copies: 1 byte where there were 2 and 1."""
    machine, stack = load_machine("1x8xB200"), load_stack("megatron-core")
    words = "dp=8,mbs=1,zero=1,precision=fp8"
    parts = {}
    for own in ("false", "true"):
        job = job_of(LLAMA, f"{words},fp8_params={own}", stack, batch=8)
        found = predict(job.gpt, job.plan, machine, stack=job.stack)
        parts[own] = found.memory.parts["parameters"]
    assert parts["false"] - parts["true"] == 2 * LINEARS


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("zero=1,recipe=nvfp4", "nvfp4"),
        ("zero=3,recipe=mxfp8", "mxfp8"),
        ("z=2,zero=1,recipe=fp8-blockwise", "fp8-blockwise"),
        ("zero=1,recipe=mxfp8,master=remainders", "remainders"),
        ("zero=1,recipe=mxfp8,offload=update", "offload=update"),
        ("zero=1,recipe=mxfp8,optimizer=muon", "optimizer=muon"),
        ("precision=fp32", "precision=fp32"),
    ],
)
def test_plans_whose_weights_cannot_be_of_8_bits_are_refused(words: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        parse_plan(f"dp=2,mbs=1,fp8_params=true,{words}", batch=8)


def test_weights_of_8_bits_need_linears_in_8_bits() -> None:
    stack = load_stack("megatron-core")
    with pytest.raises(PlanError, match="fp8_params=true"):
        job_of(LLAMA, "dp=8,mbs=1,zero=1,fp8_params=true", stack, batch=8)
    unsharded = "dp=8,mbs=1,zero=0,precision=fp8,fp8_params=true"
    job = job_of(LLAMA, unsharded, stack, batch=8)
    assert "fp8_params" in stack.runs.refusal(job.plan)
    assert load_stack("torchtitan").runs.refusal(job.plan)


def test_a_run_refuses_them_and_a_search_knows_no_bounds() -> None:
    plan = plan_of("zero=1,recipe=fp8-tensorwise")
    with pytest.raises(LaunchError, match="fp8_params=true"):
        check_host_use(LLAMA, plan, "cpu")
    fixed: dict[str, Any] = {"recipe": "fp8-tensorwise", "fp8_params": True}
    problem = SearchProblem(LLAMA, devices=2, batch=4, fixed=fixed)
    assert "fp8_params" in unproved(problem, load_machine("dgx-h100"))
