"""Dispatchers in which ranks of tensor parallelism send their own rows of a sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.predict import predict
from simulator.stacks import EXECUTOR, Stack, load_stack
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import Op
from workload.plan import Plan

MEGATRON = load_stack("megatron-core")
MACHINE = load_machine("dgx-h100")
GPT = replace(find_model("mixtral-8x7b"), layers=1)
PLAN = Plan(tp=4, dp=8, ep=8, batch=8, mbs=1, sp=True)
EACH = replace(MEGATRON, own_kernels={**MEGATRON.own_kernels, "exchange": "each"})


def ops_of(plan: Plan, stack: Stack = MEGATRON, capacity: float = 0.0) -> dict[str, Op]:
    """The collectives of the one layer by name; of x and of experts' exchanges alone."""
    gpt = GPT.changed(capacity=capacity)
    program = lower(gpt, plan, behaviour=stack.kernels(gpt, plan, MACHINE).behaviour)
    own = {op.name: op for op in program.ops if op.is_collective and op.part.is_layer}
    return {name: op for name, op in own.items() if op.axes in (("tp",), ("ep",))}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_rank_sends_a_quarter_of_the_rows_and_gathers_those_of_all_four(
    recompute: str,
) -> None:
    """A sequence of 4,096 tokens, each to 2 experts, 4,096 columns in bf16: an exchange of 1,024
    tokens' rows has 16 MiB, a gather or a sum over x of those of all 64."""
    found = ops_of(PLAN.changed(recompute=recompute))
    runs = 2 if recompute == "full" else 1
    exchanges = {n: op for n, op in found.items() if op.kind == "all_to_all"}
    rows = [op.nbytes for n, op in exchanges.items() if "scores" not in n and "counts" not in n]
    assert len(rows) in (2 * runs + 2, 2 * runs + 1)  # there and back; the last one not again
    assert set(rows) == {2**24}
    labels = ("experts.rows.gather", "experts.reduce", "combine.grad.rows.gather")
    over_x = [op for op in found.values() if op.label in (*labels, "experts.grad.reduce")]
    assert len(over_x) in (2 * runs + 2, 2 * runs + 1)
    assert {op.nbytes for op in over_x} == {2**26}
    scores = [op.nbytes for name, op in exchanges.items() if "scores.exchange" in name]
    assert set(scores) == {1024 * 2 * 4}
    plain = ops_of(PLAN.changed(recompute=recompute), EACH)
    changed = {op.label for name, op in plain.items() if op.nbytes != found[name].nbytes}
    exchanged = {op.label for op in exchanges.values()} - {"dispatch.counts.exchange"}
    assert changed == exchanged | {*labels, "experts.grad.reduce"}


def test_of_fewer_places_than_tokens_the_gathers_stay_those_of_tokens() -> None:
    """4,096 tokens have 2 x 4,096 / 4 places: exchanges have half of the tokens' rows, and a rank
    of x a quarter of these. Gathers of these would be smaller; that is not modelled."""
    found, plain = (ops_of(PLAN, stack, capacity=0.25) for stack in (MEGATRON, EACH))
    exchanges = [name for name, op in found.items() if op.kind == "all_to_all"]
    whole = {op.nbytes for op in plain.values() if op.label == "dispatch.exchange"}
    assert whole == {2**25 // 2}
    for name, op in found.items():
        assert op.nbytes * (4 if name in exchanges else 1) == plain[name].nbytes


def test_gathered_tokens_come_to_a_node_once_and_are_gathered_over_x_there() -> None:
    """Of 8 x 4,096 tokens, 4,096 columns in bf16, ranks of one x gather a quarter from each other,
    and ranks of x the whole behind that; sums, and their gradients, are in fp32, the dtype of
    scores, and scores are those of all 8 experts, not of 2."""
    plan = PLAN.changed(dispatcher="all_gather")
    found = {op.label: op.nbytes for op in ops_of(plan).values()}
    plain = {op.label: op.nbytes for op in ops_of(plan, EACH).values()}
    whole = 8 * 4096 * 4096 * 2
    assert plain["dispatch.tokens.gather"] == plain["dispatch.grad.scatter"] == whole
    wide = ("combine.scatter", "combine.grad.tokens.gather", "dispatch.tokens.gather")
    assert [found[label] for label in wide] == [whole * 2 // 4, whole * 2 // 4, whole // 4]
    over_x = ("experts.rows.gather", "experts.reduce", "combine.grad.rows.gather")
    assert [found[label] for label in over_x] == [whole, whole * 2, whole * 2]
    assert (found["dispatch.grad.scatter"], found["experts.grad.reduce"]) == (whole // 4, whole)
    assert found["dispatch.scores.gather"] == 8 * 1024 * 8 * 4
    assert found["experts.scores.gather"] == 8 * 4096 * 8 * 4
    assert found["dispatch.chosen.gather"] == 8 * 1024 * 8  # whether each expert is chosen: a byte


@pytest.mark.parametrize("fields", [{"sp": False}, {"etp": 1}])
def test_where_ranks_of_x_have_no_rows_of_their_own_for_the_same_experts_nothing_changes(
    fields: dict[str, object],
) -> None:
    plan = PLAN.changed(**fields)
    assert ops_of(plan) == ops_of(plan, EACH)
    assert not EXECUTOR.kernels(GPT, PLAN, MACHINE).behaviour.own_rows


def test_what_is_shown_is_what_is_timed_and_shorter_where_rows_leave_nodes() -> None:
    """A step's volume of the axis of experts is that of the program's exchanges."""
    each, less = (predict(GPT, PLAN, MACHINE, stack=stack) for stack in (EACH, MEGATRON))
    assert less.breakdown_s["ep"] < 0.3 * each.breakdown_s["ep"]
    exchanged = [op for op in ops_of(PLAN).values() if op.axes == ("ep",)]
    assert less.comm_bytes["ep"] == sum(op.nbytes for op in exchanged)
    assert each.comm_bytes["tp"] < less.comm_bytes["tp"]
