"""Values of a plan's keys that stacks do not run together, in predictions and in searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.search import SearchProblem, search
from simulator.search.neighbours import KINDS, neighbours, savers
from simulator.stacks import StackError, load_stack
from simulator.stacks.job import job_of
from tests.messages import names
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.plan_text import parse_plan

TURNS = "ep=8,dp=8,mbs=1,overlap=dp+a2a"
MIXTURE = GPT.of(
    name="mixture",
    layers=4,
    hidden=256,
    heads=4,
    ffn=512,
    sequence=256,
    vocab=1000,
    experts=8,
    topk=2,
    expert_ffn=512,
)


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-core-deepep", "nemo"])
@pytest.mark.parametrize(
    ("plan", "both"),
    [
        (f"{TURNS},recompute=full", ("overlap=a2a", "recompute=full")),
        (f"{TURNS},recompute=full:2", ("overlap=a2a", "recompute=full")),
        (f"{TURNS},recompute=layernorm+moe", ("overlap=a2a", "recompute=moe")),
        (f"{TURNS}+shared", ("overlap=a2a+shared",)),
        (f"{TURNS},dispatcher=all_gather", ("overlap=a2a", "dispatcher=all_gather")),
        (f"{TURNS},precision=fp32", ("overlap=a2a", "precision=fp32")),
        (
            "ep=8,dp=8,overlap=shared,dispatcher=all_gather",
            ("overlap=shared", "dispatcher=all_gather"),
        ),
        (
            "ep=8,dp=8,overlap=shared,recompute=shared_experts",
            ("overlap=shared", "recompute=shared_experts"),
        ),
        ("dp=8,recipe=fp8-delayed,recompute=layernorm", ("recompute=layernorm",)),
        ("dp=8,recipe=fp8-delayed,recompute=moe_act+mlp", ("recompute=moe_act",)),
    ],
)
def test_what_megatron_core_refuses_is_refused_by_name(
    stack: str, plan: str, both: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(stack, *both)):
        load_stack(stack).check(parse_plan(plan, batch=64))


@pytest.mark.parametrize(
    "plan",
    [
        f"{TURNS},recompute=layernorm+moe_act",
        "ep=8,dp=8,overlap=dp+shared,recompute=full",
        "dp=8,recipe=fp8-delayed,recompute=full",
        "dp=8,recipe=mxfp8,recompute=layernorm+moe_act",
    ],
)
def test_each_runs_without_the_other(plan: str) -> None:
    load_stack("megatron-core").check(parse_plan(plan, batch=64))


def test_stacks_without_a_source_refuse_none() -> None:
    for name in ("primus", "simgpt", "deepspeed-moe", "torchtitan"):
        assert load_stack(name).apart == ()


def test_a_search_refuses_the_pair_that_is_fixed() -> None:
    stack = load_stack("megatron-core")
    fixed = {"mbs": 1, "recompute": "full", "overlap": ("dp", "a2a")}
    with pytest.raises(PlanCannotRunError, check=names("overlap=a2a", "recompute=full")):
        list(search(SearchProblem(MIXTURE, 8, 8, fixed, stack=stack), load_machine("dgx-h100")))


def test_neighbours_are_what_the_stack_runs() -> None:
    """Whole layers run again in plans without a2a alone."""
    stack = load_stack("megatron-core")
    job = job_of(MIXTURE, "ep=8,dp=8,mbs=1,overlap=a2a", stack, batch=16)
    problem = SearchProblem(MIXTURE, 8, 16, stack=stack)
    found = [plan for kind in KINDS for plan in neighbours(problem, job.plan, kind)]
    found += [plan for _, plan in savers(problem, job.plan)]
    assert not any(
        "a2a" in p.training.overlap and p.training.recompute.startswith("full") for p in found
    )
    for plan in found:
        stack.check(plan, MIXTURE)


@pytest.mark.parametrize(
    "rule", ["{}", "{speed = 'full'}", "{overlap = 1}", "{overlap = []}", "'a2a'"]
)
def test_a_set_of_values_is_a_table_of_a_plans_keys(rule: str, tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    head = "base = 'usual'\ntitle = 'ours'\nsource = 'a trace'\n"
    file.write_text(f"{head}[can]\napart = [{rule}]\n", encoding="utf-8")
    with pytest.raises(StackError, check=names("can.apart", "overlap", "recompute")):
        load_stack(str(file))
