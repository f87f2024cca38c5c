"""Dispatchers in which ranks of tensor parallelism send their own rows of a sequence."""

from __future__ import annotations

from dataclasses import replace

from simulator.predict import predict
from simulator.stacks import EXECUTOR, load_stack
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan import Plan

MEGATRON = load_stack("megatron-core")


def test_where_experts_are_split_over_x_each_of_its_ranks_sends_its_own_rows() -> None:
    """Four ranks of x with sequence parallelism send a quarter of the rows each, in Megatron-Core's
    dispatcher; without it, or where they hold different experts, as many as there are."""
    gpt, machine = find_model("mixtral-8x7b"), load_machine("dgx-h100")
    plan = Plan(x=4, data=8, expert=8, batch=8, micro_batch=1, sequence_parallel=True)
    others = replace(plan, sequence_parallel=False), replace(plan, expert_tensor=1)
    shares = [
        dict(MEGATRON.kernels(gpt, each, machine).habits.payloads).get("all_to_all", 1.0)
        for each in (plan, *others)
    ]
    assert shares == [0.25, 1.0, 1.0]
    assert "all_to_all" not in dict(EXECUTOR.kernels(gpt, plan, machine).habits.payloads)


def test_a_step_whose_rows_leave_nodes_is_shorter_where_ranks_send_their_own() -> None:
    gpt = replace(find_model("mixtral-8x7b"), layers=2)
    machine = load_machine("dgx-h100")
    plan = Plan(x=4, data=8, expert=8, batch=8, micro_batch=1, sequence_parallel=True)
    own = {**MEGATRON.own_kernels, "exchange": "each"}
    each = predict(gpt, plan, machine, stack=replace(MEGATRON, own_kernels=own))
    less = predict(gpt, plan, machine, stack=MEGATRON)
    assert less.breakdown_s["expert"] < 0.3 * each.breakdown_s["expert"]
