"""Twenty small spaces drawn at random: branch and bound finds the best of all plans tried."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from simulator.search.baselines import every_plan
from simulator.search.problem import SearchProblem, unproved
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
    "gated": DENSE.changed(output_gate=True),
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
            wanted = kind in ("dense", "gated") or any(int(column.max()) > 1 for column in splits)
            if FEWEST <= sum(space.plans for space in spaces) <= MOST and wanted:
                return problem, numbers.choice(sorted(MACHINES))
            if not keys:
                break
            key = keys.pop()
            fixed[key] = numbers.choice(VALUES[key])


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < 5 else pytest.mark.slow) for seed in range(SPACES)],
)
def test_branch_and_bound_finds_the_best_of_a_small_space(seed: int) -> None:
    problem, name = drawn(seed)
    finds_the_best(problem, MACHINES[name])


FEW: dict[str, Any] = {"mbs": 1, "zero": 1, "order": "tp-dp-pp", "schedule": "1f1b"}
IN_FP8 = [
    ("simgpt", "dense", 8, {"y": 1, "z": 1, "pp": 1, "recompute": "none"}),
    ("nemo", "experts", 8, {"pp": 1}),
    ("megatron-core", "dense", 8, {}),
]


@pytest.mark.parametrize(
    ("stack", "model", "devices", "more"),
    [IN_FP8[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in IN_FP8[1:])],
)
def test_branch_and_bound_finds_the_best_in_the_fp8_of_a_stack(
    stack: str, model: str, devices: int, more: dict[str, Any]
) -> None:
    """On Hopper, whose operands are transposed, with casts for experts in kernels of their own."""
    fixed = FEW | more | {"precision": "fp8"}
    problem = SearchProblem(MODELS[model], devices, 8, fixed, stack=load_stack(stack))
    assert not unproved(problem, MACHINES["dgx-h100"])
    finds_the_best(problem, MACHINES["dgx-h100"])


@pytest.mark.slow
def test_the_fp8_of_a_stack_is_found_beside_other_precisions() -> None:
    fixed = FEW | {"y": 1, "z": 1, "recompute": "full", "sp": True}
    several = {"precision": ("bf16", "fp8")}
    problem = SearchProblem(DENSE, 4, 8, fixed, several=several)
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    assert {plan.training.recipe for plan in plans} == {"none", "fp8"}
    finds_the_best(problem, MACHINES["dgx-h100"])


def test_no_bounds_are_known_where_the_overlap_decides_what_is_gathered_in_fp8() -> None:
    problem = SearchProblem(DENSE, 4, 8, {"precision": "fp8"}, stack=load_stack("torchtitan"))
    assert "recompute=per_op" in unproved(problem, MACHINES["dgx-h100"])
    for fixed in ({"precision": "fp8", "tp": 1}, {"precision": "fp8", "recompute": "full"}, {}):
        assert not unproved(replace(problem, fixed=fixed), MACHINES["dgx-h100"])
