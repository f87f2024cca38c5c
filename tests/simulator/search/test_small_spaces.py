"""Twenty small spaces drawn at random: branch and bound finds the best of all plans tried."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from simulator.search.problem import SearchProblem
from simulator.search.space import spaces_of
from simulator.stacks import load_stack
from tests.simulator.search.answers import finds_the_best
from tests.simulator.search.drawn import MACHINES, MIXTURE
from workload.errors import PlanCannotRunError
from workload.gpt import GPT

DENSE = GPT.of(
    name="dense",
    layers=4,
    hidden=1024,
    heads=8,
    ffn=4096,
    sequence=1024,
    vocab=8192,
    positions="rope",
    activation="swiglu",
    norm="rmsnorm",
    biases=False,
)
MODELS = {
    "dense": DENSE,
    "long": replace(DENSE, sequence=8192),
    "experts": MIXTURE.changed(layers=3, experts=4),
    "long experts": MIXTURE.changed(layers=2, experts=4, sequence=8192, dense_layers=0),
}
STACKS = ("simgpt", "megatron-core", "nemo", "torchtitan", "fsdp")
VALUES: dict[str, list[Any]] = {
    "zero": [0, 1, 3],
    "recompute": ["none", "full"],
    "mbs": [1, 2],
    "pp": [1, 2],
    "tp": [1, 2],
    "sp": [False],
    "overlap": [(), ("dp",)],
}
FEWEST, MOST = 4, 60  # plans
SPACES = 20


def drawn(seed: int) -> tuple[SearchProblem, str]:
    """A problem with some plans, and a machine: fields are fixed until the plans are few."""
    numbers = random.Random(seed)
    kind = sorted(MODELS)[seed % len(MODELS)]
    while True:
        stack = load_stack(numbers.choice(STACKS))
        fixed: dict[str, Any] = {"order": "tp-dp-pp", "schedule": "1f1b"}
        fixed |= {"y": 1, "z": 1} if stack.name != "simgpt" or numbers.random() < 0.7 else {}
        devices, keys = numbers.choice([4, 8]), sorted(VALUES)
        numbers.shuffle(keys)
        while True:
            problem = SearchProblem(MODELS[kind], devices, 8, dict(fixed), stack=stack)
            try:
                spaces = spaces_of(problem)
            except PlanCannotRunError:
                break
            splits = [space.columns["cp" if "long" in kind else "ep"] for space in spaces]
            wanted = kind == "dense" or any(int(column.max()) > 1 for column in splits)
            if FEWEST <= sum(space.plans for space in spaces) <= MOST and wanted:
                return problem, numbers.choice(sorted(MACHINES))
            if not keys:
                break
            key = keys.pop()
            fixed[key] = numbers.choice(VALUES[key])


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < 4 else pytest.mark.slow) for seed in range(SPACES)],
)
def test_branch_and_bound_finds_the_best_of_a_small_space(seed: int) -> None:
    problem, name = drawn(seed)
    finds_the_best(problem, MACHINES[name])
