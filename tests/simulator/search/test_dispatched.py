"""The fewest bytes of collectives that gather or sum experts' tokens, by hand and of all plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.search.bounds.batched_programs import BatchedProgram, sized
from simulator.search.bounds.dispatched import Dispatched
from simulator.search.problem import SearchProblem
from simulator.search.space import Order, spaces_of
from simulator.stacks import EXECUTOR, Stack, load_stack
from topologies.machine_files import load_machine, with_settings
from workload.exchange.own_rows import COLLECTIVES, TRADES
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import Op
from workload.plan import Plan

MACHINE, MEGATRON = load_machine("dgx-h100"), load_stack("megatron-core")
MIXTRAL = replace(find_model("mixtral-8x7b"), layers=1)
ONE: dict[str, Any] = {
    **{"y": 1, "z": 1, "cp": 1, "pp": 1, "zero": 0, "recompute": "none", "mbs": 1},
    **{"order": "tp-dp-pp", "overlap": (), "dispatcher": "usual"},
}


def bounds(
    gpt: GPT, stack: Stack = MEGATRON, fixed: Mapping[str, Any] = ONE
) -> Iterator[tuple[Plan, Op, int]]:
    """Every plan on 8 devices that splits experts, its collectives by their first micro-batch, and
    the bound of each."""
    for space in spaces_of(SearchProblem(gpt, 8, 8, fixed, stack=stack)):
        dispatched, every = Dispatched(space, MACHINE), np.arange(len(space))
        rows = every[space.columns["ep"] > 1]
        for some in sized(space, rows):
            for lane, row in enumerate(some.rows.tolist()):
                plan = space.plan(row, Order("1f1b", 1, (), ONE["order"], ONE["dispatcher"]))
                for op in gathers(some):
                    least = dispatched.gathered(some.rows, op, some.values(op.nbytes))
                    yield plan, op, int(least[lane])


def gathers(some: BatchedProgram) -> Iterator[Op]:
    own = (op for op in some.program.ops if op.communicates and op.block.micro_batch == 0)
    return (op for op in own if op.label in TRADES or op.label in COLLECTIVES)


def sent(gpt: GPT, plan: Plan, stack: Stack = MEGATRON) -> dict[str, int]:
    """The bytes of the plan's own collectives, by label."""
    ops = lower(gpt, plan, behaviour=stack.kernels(gpt, plan, MACHINE).behaviour).ops
    return {op.label: op.nbytes for op in ops if op.communicates and op.part.is_layer}


def test_of_a_model_without_experts_nothing_is_fewer() -> None:
    fixed = {key: value for key, value in ONE.items() if key != "dispatcher"}
    dense = replace(find_model("llama-3.1-8b"), layers=1)
    (space,) = spaces_of(SearchProblem(dense, 8, 8, fixed | {"tp": 2}, stack=MEGATRON))
    (some,) = sized(space, np.array([0]))
    sums = [op for op in some.program.ops if op.communicates]
    for op in sums:
        least = Dispatched(space, MACHINE).gathered(some.rows, op, some.values(op.nbytes))
        assert least.tolist() == some.values(op.nbytes).tolist()
    assert sums


@pytest.mark.parametrize(
    ("stack", "dispatchers", "fewer"),
    [
        (EXECUTOR, ("usual", "hierarchical"), False),
        (EXECUTOR, ("usual", "once_per_node"), True),
        (load_stack("nemo+deepep"), ("usual",), True),  # once to each node, or rank
        (MEGATRON, ("usual",), True),  # a rank's own rows
    ],
)
def test_where_fewer_bytes_may_take_longer_no_bound_follows_from_the_fewest(
    stack: Stack, dispatchers: tuple[str, ...], fewer: bool
) -> None:
    """On a machine whose all-to-alls stall at some sizes; with a row for each expert there is but
    one number of bytes."""
    at = "software.all_to_all.stall."
    stall = {f"{at}chunk_from": "900 KiB", f"{at}chunk_below": "1200 KiB", f"{at}hop": "10 ms"}
    fixed = {key: value for key, value in ONE.items() if key != "dispatcher"}
    several = {"dispatcher": dispatchers}
    space, *_ = spaces_of(SearchProblem(MIXTRAL, 8, 8, fixed, several=several, stack=stack))
    for machine, falls in ((MACHINE, False), (with_settings(MACHINE, stall), True)):
        assert Dispatched(space, machine).has_bounds == (not (fewer and falls))


@pytest.mark.parametrize(
    ("stack", "topk"), [(MEGATRON, 1), (MEGATRON, 2), (MEGATRON, 8), (EXECUTOR, 2)]
)
def test_no_plan_gathers_fewer_bytes(stack: Stack, topk: int) -> None:
    small: dict[str, Any] = {
        "hidden": 256,
        "heads": 8,
        "kv_heads": 8,
        "head_width": 0,
        "sequence": 512,
    }
    gpt = MIXTRAL.changed(**small, ffn=512, expert_ffn=512, topk=topk)
    known: dict[Plan, dict[str, int]] = {}
    equal = set[str]()
    for plan, op, least in bounds(gpt, stack):
        if plan not in known:
            known[plan] = sent(gpt, plan, stack)
        exact = known[plan][op.label]
        assert least <= exact, (op.label, plan)
        is_loose = stack == MEGATRON and plan.etp != 1
        assert least == exact or is_loose, (op.label, plan)
        equal |= {op.label} if least == exact else set()
    assert {plan.tp for plan in known} == {1, 2, 4, 8}
    assert equal
