"""A share of an update on the host: who updates what, what is where, and who refuses it."""

from __future__ import annotations

from math import prod

import pytest

from simulator.predict import predict
from simulator.stacks import load_stack
from tests.workload.test_host_update import LLAMA, SHARE
from topologies.machine_files import load_machine
from workload.errors import PlanError
from workload.held import Held
from workload.lowering import lower
from workload.op import HEAD, ROLES
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

TABLE, LAYER = 128_256 * 4096, 218_103_808 + 2 * 4096  # parameters; of a layer, norms included


def plan_of(share: object, words: str = "zero=2,gradients=bf16") -> Plan:
    text = f"dp=8,mbs=1,offload=update,offload_share={share},{words}"
    return parse_plan(text, batch=8)


def updated(program: Program, kind: str) -> list[str]:
    return [name for op in program.ops if op.kind == kind for name in op.attributes["parameters"]]


def in_order(program: Program) -> list[str]:
    """All parameters in the model's order: the classifier and the norm before it are last."""
    return sorted(program.layouts, key=lambda name: program.buffers[name].part == HEAD)


def elements(program: Program, names: list[str]) -> int:
    return sum(prod(program.buffers[f"{name}.m"].shape) for name in names)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.99])
def test_the_first_parameters_that_make_up_the_share_are_the_hosts(share: float) -> None:
    program = lower(LLAMA, plan_of(share))
    there, here = updated(program, "host_adamw"), updated(program, "adamw")
    order = in_order(program)
    assert {*there} == {*order[: len(there)]}
    assert {*here} == {*order[len(there) :]}
    last = len(there) - 1
    assert elements(program, there) >= share * SHARE > elements(program, order[:last])


def test_twelve_bytes_of_each_are_where_it_is_updated_and_copies_are_of_the_hosts_alone() -> None:
    """A tenth of 8.03 billion is the embedding's table of 0.525 and a part of the second layer."""
    program = lower(LLAMA, plan_of(0.1))
    held = dict(zip(ROLES, program.levels[:, 0].tolist(), strict=True))
    there = elements(program, updated(program, "host_adamw"))
    assert TABLE + LAYER < 8 * there < TABLE + 2 * LAYER
    assert held["host"] == 12 * there
    assert held["optimizer"] == 12 * (SHARE - there)
    moved = {
        kind: sum(op.nbytes for op in program.ops if op.kind == kind)
        for kind in ("to_host", "to_device", "host_adamw")
    }
    assert moved == {"to_host": 4 * there, "to_device": 2 * there, "host_adamw": 30 * there}


def test_all_of_it_is_the_program_without_a_share() -> None:
    assert lower(LLAMA, plan_of(1)).ops == lower(LLAMA, plan_of("1.0")).ops
    assert "adamw" not in {op.kind for op in lower(LLAMA, plan_of(1)).ops}


def test_deepspeed_splits_by_sub_groups_the_last_of_which_are_the_hosts() -> None:
    """Of 1.004 billion parameters a rank there are 5 groups of 0.2 billion and more, or one."""
    words = "zero=3,gradients=bf16"
    for size, share, expected in ((200_000_000, 0.5, 3), (200_000_000, 0.2, 1), (10**9, 0.1, 2)):
        behaviour = StackBehaviour(held=Held(sub_group=size))
        program = lower(LLAMA, plan_of(share, words), behaviour=behaviour)
        order, there = in_order(program), updated(program, "host_adamw")
        assert {*there} == {*order[len(order) - len(there) :]}
        groups = [0]
        for name in order:
            groups += [0] if groups[-1] >= size else []
            groups[-1] += elements(program, [name])
        assert elements(program, there) == sum(groups[-expected:])
    one = lower(
        LLAMA, plan_of(0.1, words), behaviour=StackBehaviour(held=Held(sub_group=2 * 10**9))
    )
    assert updated(one, "adamw") == []


def test_a_step_waits_for_its_host_as_much_less() -> None:
    machine, stack = load_machine("1x8xA100-40"), load_stack("megatron-core")
    words = "zero=1,overlap=none"
    of = {
        share: predict(LLAMA, plan_of(share, words), machine, stack=stack).step_s
        for share in (1, 0.5)
    }
    program = lower(LLAMA, plan_of(0.5, words))
    less = 8 * 30 * (SHARE - elements(program, updated(program, "host_adamw"))) / 56e9
    assert less < of[1] - of[0.5] < 1.05 * less / 0.9  # the pace of its other kernels, and copies


@pytest.mark.parametrize(
    "words",
    [
        *("offload_share=0.5", "offload=optimizer,offload_share=0.5"),
        *("zero=3,offload=parameters,offload_share=0.5", "offload=update,offload_share=0"),
        *("offload=update,offload_share=1.5", "offload=update,offload_share=half"),
        *("offload=update,offload_share=-1", "offload=update,offload_share=nan"),
    ],
)
def test_a_share_of_nothing_or_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(PlanError, match="offload_share"):
        parse_plan(f"dp=2,mbs=1,{words}", batch=8)


def test_a_plan_with_a_share_is_read_back_from_text_and_table() -> None:
    for share in (0.25, 1e-5, 0.1 + 0.2, 1 / 3):
        plan = plan_of(share)
        assert plan.training.offload_share == share
        assert f"offload_share={share}" in str(plan)
        assert parse_plan(str(plan), batch=8) == plan == parse_plan(plan.as_dict())
