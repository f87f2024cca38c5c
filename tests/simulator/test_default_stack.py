"""Which stack a question has that names none, and that the answer says why."""

from __future__ import annotations

import json

import pytest

from simulator.stacks.default_stack import default_stack
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine
from topologies.shipped import machine_names

# By machine: of a plan of tensor and data parallelism, and of a search for one.
STACKS = {
    "alps": ("megatron-core", "simgpt"),
    "aurora": ("megatron-deepspeed", "megatron-deepspeed"),
    "dgx-a100": ("megatron-core", "megatron-core"),
    "dgx-b200": ("megatron-core", "megatron-core"),
    "dgx-h100": ("megatron-core", "megatron-core"),
    "dgx-h200": ("megatron-core", "megatron-core"),
    "el-capitan": ("primus", "primus"),
    "frontier": ("simgpt", "simgpt"),
    "gb200-nvl72": ("megatron-core", "megatron-core"),
    "host": ("simgpt", "simgpt"),
    "jupiter-booster": ("megatron-core", "megatron-core"),
    "kestrel": ("megatron-core", "megatron-core"),
    "leonardo": ("megatron-core", "megatron-core"),
    "lumi": ("simgpt", "simgpt"),
    "marenostrum5": ("megatron-core", "megatron-core"),
    "perlmutter": ("megatron-core", "simgpt"),
    "2x8xMI300X,8xNDR": ("primus", "primus"),
    "2x8xMI355X,8xNDR": ("primus", "primus"),
    "2x8xV100,8xNDR": ("megatron-core", "megatron-core"),
}


def test_every_machine_has_its_stack_here() -> None:
    assert {*machine_names()} <= {*STACKS}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_the_usual_one_of_the_devices(name: str) -> None:
    machine = load_machine(name)
    found = [default_stack(machine, "tp=2,dp=rest", searches=how) for how in (False, True)]
    assert tuple(stack for stack, _ in found) == STACKS[name]
    assert all(why for _, why in found)


@pytest.mark.parametrize("plan", ["tp=2,z=2,dp=rest", "x=2,y=2", {"y": 4, "dp": 1}])
@pytest.mark.parametrize("name", ["dgx-h100", "el-capitan", "aurora"])
def test_a_plan_of_the_3d_algorithm_is_of_simgpts_executor(name: str, plan: str) -> None:
    assert default_stack(load_machine(name), plan)[0] == "simgpt"


def test_an_answer_says_why_it_is_that_stack_unless_it_was_named() -> None:
    words = ("predict", "tiny-1m", "-m", "dgx-h100", "-n", "8", "--batch", "16")
    chosen = json.loads(simgpt(*words, "--json").out)
    named = json.loads(simgpt(*words, "--stack", "megatron-core", "--json").out)
    assert chosen["step_s"] == named["step_s"]
    why = chosen["asked"].pop("stack_chosen")
    assert "stack_chosen" not in named["asked"]
    assert why in " ".join(simgpt(*words).out.split())
    assert {**chosen["asked"], "command": ""} == {**named["asked"], "command": ""}
