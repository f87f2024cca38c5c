"""Whatever a search may answer under a stack, its framework can be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpt.arguments.searched import searched_of
from simulator.search import SearchProblem
from simulator.search.baselines import every_plan
from simulator.search.neighbours import KINDS, neighbours
from simulator.search.space import spaces_of
from simulator.stacks import load_stack
from tests.examples import one_in
from tests.simgpt.frameworks.asked import Asked, exported
from topologies.session import Session
from workload.gpt import GPT, find_model
from workload.plan import Plan

MEGATRON, BRIDGE, TITAN = "megatron", "megatron-bridge", "torchtitan"
MODELS = {
    "dense": replace(find_model("llama-3.1-8b"), layers=4, sequence=8192),
    "titan": replace(find_model("llama-3.1-8b"), sequence=8192),
    "experts": replace(find_model("mixtral-8x7b"), layers=4, sequence=8192),
    "titan experts": replace(find_model("qwen3-30b-a3b"), sequence=8192),
    "latent": replace(find_model("deepseek-v2-lite"), layers=4, sequence=8192),
    "titan latent": replace(find_model("deepseek-v2-lite"), sequence=8192),
    "sinks": replace(find_model("gpt-oss-20b"), layers=4, sequence=8192),
    "gpt": replace(find_model("gpt3-6.7b"), layers=4, sequence=8192),
}
PLANS_OF_EACH = 6
QUESTIONS = [
    ("megatron-core", MEGATRON, "dense", ""),
    ("megatron-core", MEGATRON, "dense", "zero=2"),
    ("megatron-core", MEGATRON, "dense", "zero=3"),
    ("megatron-core", MEGATRON, "dense", "tp=2,sp=false"),
    ("megatron-core", MEGATRON, "dense", "pp=2,zero=1,overlap=all"),
    ("megatron-core", MEGATRON, "dense", "optimizer=muon"),
    ("megatron-core", MEGATRON, "experts", ""),
    ("megatron-core", MEGATRON, "experts", "tp=2,etp=2"),
    ("megatron-core", MEGATRON, "experts", "tp=1,ep=2"),
    ("megatron-core", MEGATRON, "sinks", ""),
    ("megatron-core", MEGATRON, "latent", "zero=1"),
    ("megatron-core-deepep", MEGATRON, "experts", ""),
    ("nemo", BRIDGE, "dense", ""),
    ("nemo+deepep", BRIDGE, "latent", ""),
    ("primus", MEGATRON, "experts", ""),
    ("megatron-core-2023", MEGATRON, "dense", ""),
    ("megatron-lm-2021", MEGATRON, "gpt", ""),
    ("megatron-lm-2022", MEGATRON, "gpt", ""),
    ("nemo@23.05", MEGATRON, "gpt", ""),
    ("torchtitan", TITAN, "titan", ""),
    ("torchtitan", TITAN, "titan experts", ""),
    ("torchtitan-eager", TITAN, "titan latent", ""),
    ("axonn", "axonn", "gpt", ""),
    ("other", "deepspeed", "gpt", "tp=1,y=1,z=1,pp=1,cp=1,reshard=true"),
]


def some_plans(gpt: GPT, stack: str, words: str) -> list[Plan]:
    """Some plans of a search's core space, from all over it, and their neighbours."""
    own = load_stack(stack)
    fixed, several = searched_of(f"mbs=1,{words}" if words else "mbs=1", own)
    problem = SearchProblem(gpt, 8, 16, fixed, several=several, stack=own)
    every = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    some = every[:: max(len(every) // PLANS_OF_EACH, 1)]
    around = [plan for each in some for kind in KINDS for plan in neighbours(problem, each, kind)]
    return list(dict.fromkeys([*some, *around]))


@pytest.mark.parametrize(("stack", "framework", "model", "words"), one_in(3, QUESTIONS))
def test_every_plan_of_a_search_is_exported(
    stack: str, framework: str, model: str, words: str
) -> None:
    """As a table of all keys, and as the text that an answer prints."""
    gpt, own = MODELS[model], load_stack(stack)
    with Session():
        plans = some_plans(gpt, stack, words)
        assert plans
        for plan in plans:
            for asked in (plan.as_dict(), own.text(plan)):
                assert exported(Asked(gpt, asked, 8, 16), framework, stack).settings
