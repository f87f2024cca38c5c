"""What is left out must be invisible: a step equals the whole one to the last tick and byte."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.columns import columns_of
from simulator.engine.simulate import Prices, simulate_ops, simulate_timeline
from simulator.engine.ticks import TICKS_PER_S
from simulator.engine.whole_program import WholeProgram
from simulator.engine.whole_step import (
    MICRO_BATCHES,
    _result,
    _timed,
    simulate_step,
    step_bytes,
)
from simulator.ranks.classes import classes_of
from simulator.result import StepResult
from tests.examples import few_and_many
from tests.messages import names
from tests.simulator.drawn_steps import BANDWIDTHS, of_one_stage
from tests.simulator.worlds import SmallCosts, SmallFabric, by_hand, plan_of, reduce
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import Op
from workload.plan import Plan
from workload.plan_text import parse_plan

SMALL = GPT.of(name="small", layers=2, hidden=48, heads=12, ffn=96, sequence=16, vocab=64)
OVERLAPS = ("none", "all", "oar", "ors", "oag", "dp", "oar+ors+oag", "ors+dp", "ors+oag+dp")
GRIDS = (
    "tp=2,y=2,z=2,dp=2",
    "z=4",
    "z=2,dp=2",
    "dp=4",
    "tp=4",
    "y=2,z=2",
    "tp=3,z=2,dp=2",
    "tp=2,y=3,dp=2",
    "z=3,dp=4",
    "tp=1",
    "tp=4,sp=true",
    "tp=2,z=2,dp=2,sp=true,attention=unfused",
)
SHARDINGS = (
    "zero=0",
    "zero=1",
    "zero=2",
    "zero=3",
    "zero=1,shard=2",
    "zero=2,shard=2",
    "zero=3,shard=2,reshard=false",
    "reshard=false",
    "offload=optimizer",
    "zero=2,offload=update",
    "zero=2,offload=update,offload_share=0.4",
    "zero=3,offload=parameters",
    "zero=3,shard=2,offload=parameters",
    "offload=activations",
    "zero=1,offload=optimizer",
    "zero=1,optimizer=muon",
)


def folded_step(plan: Plan, layers: int, bytes_per_s: float) -> StepResult:
    fabric = SmallFabric(bytes_per_s=bytes_per_s)
    return simulate_step(replace(SMALL, layers=layers), plan, SmallCosts(), fabric)


def both(
    plan: Plan, layers: int, bytes_per_s: float, *, tied: bool = True, share: float = 0.0
) -> tuple[StepResult, StepResult]:
    gpt = replace(SMALL, layers=layers, tied=tied)
    costs, fabric = SmallCosts(), SmallFabric(bytes_per_s=bytes_per_s, compute_share=share)
    folded = simulate_step(gpt, plan, costs, fabric)
    return folded, simulate_step(gpt, plan, costs, fabric, fold=False)


def assert_equal(folded: StepResult, whole: StepResult) -> None:
    assert replace(folded, micro_batches=whole.micro_batches) == whole


CASES: dict[str, Any] = {
    "bytes_per_s": st.sampled_from(BANDWIDTHS),
    "tied": st.booleans(),
    "share": st.sampled_from((0.0, 0.2)),
}


@st.composite
def plans(draw: st.DrawFn, micro_batches: st.SearchStrategy[int]) -> Plan:
    grid, sharding = draw(st.sampled_from(GRIDS)), draw(st.sampled_from(SHARDINGS))
    sharding = sharding if "dp=" in grid else sharding.replace("shard=2", "shard=0")
    overlap = draw(st.sampled_from(OVERLAPS))
    recompute = draw(st.sampled_from(("none", "full", "selective", "full:3")))
    text = f"{grid},{sharding},overlap={overlap},recompute={recompute}"
    return plan_of(text, draw(micro_batches))


EXACT = settings(deadline=None, derandomize=True)


def test_what_is_in_flight_to_the_host_when_the_layers_end_does_not_grow_with_them() -> None:
    """Sums of gradients of the last two layers are freed behind them: of one layer, as of any
    number, so many, but not for each layer more."""
    plan = plan_of("tp=2,y=2,z=2,dp=2,zero=3,offload=parameters,recompute=full", 2)
    assert_equal(*both(plan, 11, 1e6))


@few_and_many(5, 120, EXACT, **CASES, plan=plans(st.integers(1, 12)), layers=st.integers(1, 24))
def test_a_folded_step_equals_the_whole_step_exactly(
    plan: Plan, layers: int, bytes_per_s: float, tied: bool, share: float
) -> None:
    assert_equal(*both(plan, layers, bytes_per_s, tied=tied, share=share))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(deadline=None, max_examples=150, derandomize=True)
@given(**CASES, plan=plans(st.sampled_from((1, 2, 10, 15))), layers=st.integers(18, 48))
def test_a_deeply_folded_step_equals_the_whole_step_exactly(
    plan: Plan, layers: int, bytes_per_s: float, tied: bool, share: float
) -> None:
    assert_equal(*both(plan, layers, bytes_per_s, tied=tied, share=share))


@pytest.mark.parametrize(
    "overlap",
    [
        pytest.param(overlap, marks=() if number % 5 == 0 else pytest.mark.slow)
        for number, overlap in enumerate(OVERLAPS)
    ],
)
def test_of_many_micro_batches_a_few_are_simulated(overlap: str) -> None:
    plan = plan_of(f"tp=2,y=2,z=2,dp=2,recompute=full,overlap={overlap}", 10)
    assert folded_step(plan, 34, 1e9).micro_batches == MICRO_BATCHES


def in_turns(rests: Sequence[str], others: Sequence[str], every: int = 1) -> list[Any]:
    """All pairs; those but one of each (or of `every` so many), in which the others come in turn,
    are slow tests."""
    quick = {(rest, others[n % len(others)]) for n, rest in enumerate(rests[::every])}
    return [
        pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow)
        for pair in itertools.product(rests, others)
    ]


@pytest.mark.parametrize(
    ("rest", "overlap"),
    in_turns(["recompute=none", "recompute=full", *SHARDINGS[1:]], ["none", "all"], every=6),
)
def test_counts_and_memory_are_those_of_the_whole_program(rest: str, overlap: str) -> None:
    count = 16 if "parameters" in rest else 8  # whose sums come from the micro-batch before
    plan = plan_of(f"tp=2,y=2,z=2,dp=4,{rest},overlap={overlap}", count)
    gpt = replace(SMALL, layers=14)
    folded = simulate_step(gpt, plan, SmallCosts(), SmallFabric(bytes_per_s=1e9))
    program = lower(gpt, plan)
    assert folded.micro_batches < plan.micro_batches
    assert folded.memory == program.peak
    assert folded.memory.total_bytes == step_bytes(gpt, plan)
    assert folded.comm_bytes == program.comm_bytes
    assert folded.ops == len(program.ops)
    assert folded.model_flops == program.model_flops
    assert folded.hardware_flops == program.hardware_flops


@pytest.mark.parametrize(
    "recompute",
    ["full:3", *(pytest.param(s, marks=pytest.mark.slow) for s in ("full:18", "selective"))],
)
def test_layers_that_are_recomputed_unlike_each_other_are_all_simulated(recompute: str) -> None:
    assert_equal(*both(plan_of(f"tp=2,z=2,recompute={recompute}", 8), 20, 1e9))


def test_where_the_host_updates_a_few_layers_of_many_all_are_simulated() -> None:
    """A hundredth of few layers' parameters is in the table, of 40 layers' in the first layer."""
    plan = plan_of("dp=4,z=2,zero=2,offload=update,offload_share=0.01", 1)
    assert_equal(*both(plan, 40, 1e9))


def test_forward_passes_before_all_backward_passes_do_not_repeat() -> None:
    plan = plan_of("tp=2,schedule=gpipe", 12)
    assert_equal(*both(plan, 4, 1e9))
    for step in (simulate_step, lambda *given: step_bytes(*given[:2])):
        with pytest.raises(
            PlanCannotRunError, check=names("102,105,088", "400,000", "1,048,576", "mbs")
        ):
            step(SMALL, plan.with_micro_batches(2**20), SmallCosts(), SmallFabric())


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 120))]
)
def test_drawn_steps_of_all_options_are_exact(seed: int) -> None:
    assert next(of_one_stage(seed)).is_exact()


@pytest.mark.parametrize(
    ("rest", "recompute"),
    in_turns(
        ["zero=2,overlap=none", "reshard=false,overlap=dp", "overlap=all"],
        ["none", "selective", "full"],
        every=3,
    ),
)
def test_a_host_that_issues_slowly_binds_every_layer_alike(rest: str, recompute: str) -> None:
    gpt = replace(SMALL, layers=18)
    plan = plan_of(f"y=2,z=2,dp=2,{rest},recompute={recompute}", 9)
    costs, fabric = SmallCosts(issue_s=2.34491932048865e-05), SmallFabric(bytes_per_s=1e9)
    folded, whole = (simulate_step(gpt, plan, costs, fabric, fold=fold) for fold in (True, False))
    assert_equal(folded, whole)
    quick = simulate_step(gpt, plan, SmallCosts(), fabric)
    assert sum(folded.parts_ticks.values()) > sum(quick.parts_ticks.values())


@pytest.mark.parametrize("bytes_per_s", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("overlap", ["none", "all"])
def test_a_step_of_more_than_106_days_is_refused(overlap: str, bytes_per_s: float) -> None:
    plan = plan_of(f"tp=2,z=2,dp=2,overlap={overlap}", 2)
    with pytest.raises(PlanCannotRunError, match="106 days"):
        simulate_step(replace(SMALL, layers=4), plan, SmallCosts(), SmallFabric(bytes_per_s))


@pytest.mark.parametrize(
    "bytes_per_s",
    [
        pytest.param(each, marks=() if number % 9 == 5 else pytest.mark.slow)
        for number, each in enumerate(BANDWIDTHS)
    ],
)
def test_the_parts_sum_to_the_end_of_the_last_op(bytes_per_s: float) -> None:
    plan, fabric = plan_of("tp=3,z=2,dp=2", 9), SmallFabric(bytes_per_s=bytes_per_s)
    folded = folded_step(plan, 16, bytes_per_s)
    program = lower(replace(SMALL, layers=16), plan)
    run = simulate_ops(program, SmallCosts(), classes_of([program], fabric))
    assert sum(folded.parts_ticks.values()) == run.end.max()


def unlike_ranks(micro_batches: int) -> list[Op]:
    """A long sum, short ones for each micro-batch, and one that joins all ranks."""
    short = [reduce(f"m{m}.sum", f"q{m}", "tp", 10) for m in range(micro_batches)]
    return [reduce("begin", "b", "tp", 40_000_000), *short, reduce("end", "c", "dp", 10)]


def test_ranks_that_meet_in_the_end_alone_are_put_off_by_as_much_as_each_takes() -> None:
    """Of the pairs over x two share a node, the third lies in two nodes. The former take longer for
    the long sum, the latter for each of the short ones: with more of these it comes last."""
    few, more = 10, 60
    fabric = SmallFabric(launch_s=1.0, node_of=(0, 0, 0, 0, 1, 2), axes_share=False)
    programs = [by_hand("tp=2,dp=3", *unlike_ranks(count)) for count in (few, more)]
    known = replace(programs[0], plan=programs[0].plan.with_micro_batches(few))
    whole = WholeProgram(known, columns_of(known.outline))
    network = classes_of([known], fabric)
    timed = _timed(whole, more, Prices(SmallCosts(), network))
    every = [simulate_ops(each, SmallCosts(), network).end.max() for each in programs]
    assert timed is not None
    assert sum(_result(timed).parts_ticks.values()) == every[1]
    slowest = [2 * TICKS_PER_S * (more - few), TICKS_PER_S * (more - few)]
    assert every[1] - every[0] not in slowest  # neither of them is last all the time


def test_a_module_that_predicts_a_second_token_is_in_the_step() -> None:
    gpt = SMALL.changed(layers=5, positions="rope", mtp_layers=1)
    costs, fabric = SmallCosts(), SmallFabric(bytes_per_s=1e7)
    rest = "dp=2,batch=12,mbs=1", "cp=2,dp=2,batch=12,mbs=1"
    for text in ("tp=2,z=2,batch=8,mbs=2", *rest):
        plan = parse_plan(text)
        program = lower(gpt, plan)
        step = simulate_step(gpt, plan, costs, fabric)
        spans = simulate_timeline([program], costs, fabric).spans
        ticks = max(span.end_s for span in spans) * TICKS_PER_S
        assert sum(step.parts_ticks.values()) == pytest.approx(ticks, rel=1e-12)
        assert step.memory.total_bytes == program.peak.total_bytes
        assert step.model_flops == program.model_flops
