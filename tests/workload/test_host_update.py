"""An update on the host: what device and host hold, what goes between them, and who refuses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.predict import predict
from simulator.stacks import load_stack
from topologies.machine_files import load_machine, with_settings
from workload.errors import PlanError
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import ROLES
from workload.plan import Plan
from workload.plan_text import parse_plan

LLAMA = replace(find_model("llama-3.1-8b"), sequence=512)
PARAMETERS, SMALL = 8_030_261_248, (2 * 32 + 1) * 4096  # small: norms, which no rank shards
SHARE = (PARAMETERS - SMALL) // 8 + SMALL  # of a rank
A100 = load_machine("1x8xA100-40")


def plan_of(words: str, offload: str = "update") -> Plan:
    return parse_plan(f"dp=8,mbs=1,offload={offload},{words}", batch=8)


@pytest.mark.parametrize(
    ("words", "weights", "gradients"),
    [
        ("zero=2,gradients=bf16", 2 * PARAMETERS, 2 * SHARE),
        ("zero=1,gradients=bf16", 2 * PARAMETERS, 2 * PARAMETERS),
        ("zero=3,gradients=bf16", 2 * SHARE, 2 * SHARE),
        ("zero=2", 2 * PARAMETERS, 4 * SHARE),
    ],
)
def test_the_device_holds_weights_and_gradients_and_the_host_twelve_bytes(
    words: str, weights: int, gradients: int
) -> None:
    assert LLAMA.parameters == PARAMETERS
    held = dict(zip(ROLES, lower(LLAMA, plan_of(words)).levels[:, 0].tolist(), strict=True))
    assert held["parameters"] == weights
    assert held["gradients"] == gradients
    assert held["optimizer"] == 0
    assert held["host"] == 12 * SHARE


def test_gradients_go_in_four_bytes_and_weights_come_back_in_two() -> None:
    ops = lower(LLAMA, plan_of("zero=2,gradients=bf16")).ops
    sent, came, updated = (
        sum(op.nbytes for op in ops if op.kind == kind)
        for kind in ("to_host", "to_device", "host_adamw")
    )
    assert (sent, came, updated) == (4 * SHARE, 2 * SHARE, 30 * SHARE)


def test_weights_are_gathered_when_all_are_updated() -> None:
    ops = lower(LLAMA, plan_of("zero=2,gradients=bf16,overlap=dp")).ops
    last = max(at for at, op in enumerate(ops) if op.kind == "to_device")
    gathers = [at for at, op in enumerate(ops) if op.purpose == "parameter_gather"]
    assert len(gathers) == 34
    assert min(gathers) > last


def test_a_node_s_ranks_share_the_rate_of_its_host() -> None:
    """8 shards of 30 bytes a parameter at 56 GB/s, as assumed, or as the machine's file says."""
    stack = load_stack("deepspeed")
    twice = with_settings(A100, {"node.host.update": "112 GB/s"})
    for machine, rate in ((A100, 56e9), (twice, 112e9)):
        plan = plan_of("zero=2,gradients=bf16,overlap=none")
        found = predict(LLAMA, plan, machine, stack=stack).breakdown_s["host_adamw"]
        own = 8 * 30 * SHARE / rate
        back = 2 * SHARE / 25e9
        assert 0.9 * own < found < 1.1 * (own + back) / 0.9  # of the pace of its other kernels


def test_no_more_than_two_owners_gradients_are_on_their_way() -> None:
    program = lower(LLAMA, plan_of("zero=2,gradients=bf16"))
    clips = [op for op in program.ops if op.label.endswith("clip") and op.part.kind]
    sent = [
        next(w for w in op.writes if w.endswith(".sent"))
        for op in program.ops
        if op.kind == "to_host"
    ]
    for earlier, (_, clip) in zip(sent, pairwise(clips[1:]), strict=False):
        assert earlier in clip.reads


@pytest.mark.parametrize("rule", ["sgd", "muon", "lomo", "mezo"])
def test_only_adamw_runs_on_the_host(rule: str) -> None:
    with pytest.raises(PlanError, match="offload"):
        plan_of(f"optimizer={rule}")


def test_what_a_host_holds_is_compared_with_the_memory_that_it_has() -> None:
    """Eight devices share a host: of 80 GB each has 10."""
    plan = plan_of("zero=2,gradients=bf16")
    small = with_settings(A100, {"node.host.memory": "80 GB"})
    memory = predict(LLAMA, plan, small).memory
    assert memory.host_capacity_bytes == 10e9 < memory.host_bytes
    assert memory.as_dict()["host_capacity_bytes"] == 10**10
    assert "host_capacity_bytes" not in predict(LLAMA, plan, A100).memory.as_dict()


def test_a_job_on_one_device_has_all_of_its_host_s_memory() -> None:
    """14 bytes of 1.49 billion parameters, which an eighth of 80 GB would not hold."""
    gpt = replace(LLAMA, layers=2)
    plan = parse_plan("dp=1,mbs=1,offload=update,zero=2,gradients=bf16", batch=1)
    memory = predict(gpt, plan, with_settings(A100, {"node.host.memory": "80 GB"})).memory
    assert memory.host_bytes == pytest.approx(14 * gpt.parameters, rel=0.01)
    assert 10e9 < memory.host_bytes < memory.host_capacity_bytes == 80e9
