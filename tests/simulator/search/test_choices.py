"""Dispatchers, precisions and kinds of context in a search: of all that may be chosen, the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.costs.analytic import compute_costs
from simulator.engine.ticks import to_ticks
from simulator.ranks.fabric import MachineFabric
from simulator.search import search
from simulator.search.baselines import every_plan
from simulator.search.bounds.batched_programs import sized
from simulator.search.bounds.dispatched import Dispatched
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.problem import SearchProblem
from simulator.search.space import space_of, spaces_of
from simulator.stacks import load_stack
from simulator.stacks.searched import fastest_kernels
from tests.messages import names
from tests.simulator.search.answers import finds_the_best, last, proved, same_answer
from tests.simulator.search.drawn import MACHINES
from tests.simulator.search.test_branch_and_bound import SMALL
from topologies.errors import MachineError
from topologies.machine_files import load_machine, with_settings
from workload.errors import PlanCannotRunError, PlanError
from workload.exchange.kernels import SORTS, WITHIN
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.transport import ALL_TO_ALL, IN_STEPS

TINY = replace(find_model("tiny-deepseek-2m"), layers=4, sequence=512)
NARROW = {f"device.peak_flops.{name}": "800 TFLOP/s" for name in ("fp8", "mxfp8")}
FEW: dict[str, Any] = {
    "y": 1, "z": 1, "pp": 1, "mbs": 1, "zero": 1, "recompute": "none",
    "overlap": ("dp",), "order": "tp-dp-pp",
}  # fmt: skip


THREE: dict[str, tuple[str, ...]] = {"dispatcher": ("usual", "hierarchical", "once_per_node")}


def experts(**fixed: Any) -> SearchProblem:
    return SearchProblem(TINY, 8, 16, FEW | fixed, several=THREE)


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in FEW.items() if key not in keys}


def test_a_plan_that_splits_experts_has_each_dispatcher_and_no_other_plan_has() -> None:
    plans = list(every_plan(space_of(experts())))
    assert len(plans) == space_of(experts()).plans
    found = {(plan.ep > 1, plan.experts.dispatcher) for plan in plans}
    assert found == {
        (False, "usual"), (True, "usual"), (True, "hierarchical"), (True, "once_per_node"),
    }  # fmt: skip
    usual = [plan for plan in plans if plan.ep > 1 and plan.experts.dispatcher == "usual"]
    assert len([plan for plan in plans if plan.ep > 1]) == 3 * len(usual)
    alone = replace(experts(), several={})  # what is run, where nothing else is asked for
    assert {plan.experts.dispatcher for plan in every_plan(space_of(alone))} == {"usual"}
    stack = replace(alone, stack=load_stack("megatron-core"))
    assert stack.dispatchers == ["usual", "once_per_node"]


def test_a_search_over_dispatchers_finds_what_trying_all_plans_finds() -> None:
    """Eight ranks on two nodes of four. Rows of so few tokens wait for messages, of which there are
    fewer in steps; a token once to each node has no more bytes, and as many messages."""
    problem = experts(tp=1, ep=8)
    same_answer(problem, "perlmutter")
    best = proved(problem, MACHINES["perlmutter"]).best
    assert best is not None
    assert best.plan.experts.dispatcher == "hierarchical"


def test_gathered_tokens_are_tried_around_what_is_proved() -> None:
    """A long sequence's tokens of eight choices are sent eight times, or gathered by each of four
    ranks: half the bytes. No bounds are known of what gathers."""
    long = TINY.changed(experts=8, topk=8, router_groups=0, router_topk_groups=0, sequence=16384)
    several = {"dispatcher": ("usual", "all_gather")}
    problem = SearchProblem(long, 4, 4, FEW | {"tp": 1, "ep": 4}, several=several)
    answer = last(search(problem, MACHINES["dgx-h100"]))
    assert answer.found[0].plan.experts.dispatcher == "all_gather"
    assert "dispatcher=all_gather" in answer.unproved


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["perlmutter", "frontier", "dgx-h100"])
def test_searches_over_dispatchers_and_splits_find_what_trying_all_plans_finds(name: str) -> None:
    piped = SearchProblem(TINY, 8, 16, FEW | {"pp": 2, "mbs": 1}, several=THREE)
    same_answer(piped, name)
    fixed = {key: FEW[key] for key in FEW if key not in ("order", "overlap")}
    same_answer(SearchProblem(TINY, 8, 16, fixed | {"overlap": ()}, several=THREE), name)


def test_under_a_stack_that_sends_once_bounds_count_what_it_sends() -> None:
    """Bounds with a row for each expert would stand above the plan itself."""
    stack = load_stack("megatron-core-deepep")
    fixed = {key: FEW[key] for key in FEW if key != "overlap"} | {"tp": 1, "ep": 8}
    same_answer(SearchProblem(TINY, 8, 16, fixed, stack=stack), "perlmutter")


def test_under_kernels_that_send_rows_themselves_bounds_have_their_best_and_no_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan that splits experts has fewer copies, at rates above the library's."""
    stack, b200 = load_stack("nemo+deepep"), load_machine("dgx-b200")
    monkeypatch.setitem(MACHINES, "dgx-b200", b200)
    fixed = {key: FEW[key] for key in FEW if key != "overlap"} | {"tp": 1}
    problem = SearchProblem(TINY, 8, 16, fixed, stack=stack)
    same_answer(problem, "dgx-b200")
    (sent, _), *_ = Dispatched(space_of(problem), b200).ways(np.array([0]), np.array([1000]))
    assert sent == ALL_TO_ALL._replace(within=0.743)
    least = fastest_kernels(stack, TINY, {}, b200).behaviour
    plan = parse_plan("dp=8,ep=8,batch=16,mbs=1")
    moved = [op for op in lower(TINY, plan, behaviour=least).ops if op.kind in (*SORTS, *WITHIN)]
    assert {op.kind for op in moved} == {*SORTS, *WITHIN}
    assert not any(op.nbytes or op.launches for op in moved)


def test_under_a_stack_whose_ranks_send_their_own_rows_bounds_count_no_more() -> None:
    stack = load_stack("megatron-core")
    fixed = {key: FEW[key] for key in FEW if key != "overlap"}
    fixed |= {"tp": 2, "ep": 4, "etp": 0, "sp": True}
    problem = SearchProblem(TINY, 8, 16, fixed, stack=stack)
    same_answer(problem, "perlmutter")
    ways = Dispatched(space_of(problem), MACHINES["perlmutter"]).ways
    (_, sent), *_ = ways(np.array([0]), np.array([1000]))
    assert sent.tolist() == [500]  # each of two ranks its half


@pytest.mark.slow
def test_of_several_precisions_the_fastest_is_found() -> None:
    machine = with_settings(MACHINES["perlmutter"], NARROW)
    fixed = {key: FEW[key] for key in FEW if key != "zero"} | {"tp": 1, "overlap": ()}
    several = {"precision": ("bf16", "fp8-tensorwise", "mxfp8")}
    wide = SMALL.changed(hidden=4096, heads=32, ffn=16384, layers=2)
    problem = SearchProblem(wide, 2, 4, fixed, several=several)
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    assert {plan.training.recipe for plan in plans} == {"none", "fp8-tensorwise", "mxfp8"}
    finds_the_best(problem, machine)
    assert last(search(problem, machine)).found[0].plan.training.recipe != "none"
    alone = replace(problem, several={})
    assert last(search(alone, machine)).found[0].plan.training.recipe == "none"


@pytest.mark.slow
def test_parts_of_sequences_meet_in_the_way_that_is_fastest() -> None:
    fixed = {key: FEW[key] for key in FEW if key != "zero"} | {"tp": 1, "overlap": ()}
    kinds = ("ring", "all_gather", "ulysses")
    long = replace(SMALL, sequence=8192)
    problem = SearchProblem(long, 2, 2, fixed, several={"context_kind": kinds})
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    found = {(plan.cp > 1, plan.context.kind) for plan in plans}
    assert found == {(False, "ring"), *((True, kind) for kind in kinds)}
    same_answer(problem, "perlmutter")
    one = replace(problem, several={"context_kind": ("ulysses",)})
    assert {p.context.kind for space in spaces_of(one) for p in every_plan(space)} == {"ulysses"}


@pytest.mark.parametrize(
    ("kept", "kinds"), [({}, {"ring"}), ({"context_kind": "ulysses"}, {"ulysses"})]
)
def test_parts_of_sequences_that_every_plan_splits_meet_around_a_ring_or_as_asked(
    kept: dict[str, Any], kinds: set[str]
) -> None:
    fixed = without("zero") | {"tp": 1, "cp": 2} | kept
    spaces = spaces_of(SearchProblem(SMALL, 2, 2, fixed))
    plans = [plan for space in spaces for plan in every_plan(space)]
    assert {plan.cp for plan in plans} == {2}
    assert {plan.context.kind for plan in plans} == kinds


@pytest.mark.parametrize(
    ("sequence", "most"), [(4096, 1), (8191, 1), (8192, 4), (16384, 4), (32768, 16)]
)
def test_longer_sequences_may_be_split_over_more_ranks(sequence: int, most: int) -> None:
    """Unless the number is given."""
    gpt = replace(SMALL, sequence=sequence)
    assert SearchProblem(gpt, 64, 64).choices("cp", [1, 2, 4, 8, 16, 32])[-1] == most
    assert SearchProblem(gpt, 64, 64, {"cp": 32}).choices("cp", [1, 2]) == [32]


def test_what_cannot_be_chosen_is_refused_by_name() -> None:
    with pytest.raises(MachineError, check=names("perlmutter", "device.peak_flops.mxfp8")):
        last(search(SearchProblem(SMALL, 4, 8, FEW, several={"precision": ("bf16", "mxfp8")}),
                    MACHINES["perlmutter"]))  # fmt: skip
    stack = load_stack("megatron-deepspeed")
    with pytest.raises(
        PlanCannotRunError, check=names("megatron-deepspeed", "dispatcher=hierarchical")
    ):
        SearchProblem(TINY, 8, 16, {"dispatcher": "hierarchical"}, stack=stack)
    with pytest.raises(PlanError, check=names("dispatcher=once_per_node", "small")):
        SearchProblem(SMALL, 4, 8, {"dispatcher": "once_per_node"})


@pytest.mark.slow
def test_places_of_experts_by_blocks_are_searched() -> None:
    machine = with_settings(MACHINES["perlmutter"], NARROW)
    places = TINY.changed(capacity=1.25)
    problem = SearchProblem(
        places, 8, 16, FEW | {"tp": 1}, several={"precision": ("bf16", "mxfp8")}
    )
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    assert {plan.training.recipe for plan in plans} == {"none", "mxfp8"}
    finds_the_best(problem, machine)


def test_blocks_of_experts_are_not_cut() -> None:
    """tp=4 leaves 16 of 64 columns for blocks of 32, unless x splits whole experts."""
    problem = SearchProblem(TINY, 8, 16, FEW, several={"precision": ("bf16", "mxfp8")})
    plans = {}
    for space in spaces_of(problem):
        every = [space.shape(row) for row in range(len(space.micro_batches))]
        plans[space.problem.fixed.get("recipe", "none")] = {
            (each["tp"], each["etp"]) for each in every
        }
    assert plans["mxfp8"] == plans["none"] - {(4, 0), (8, 0)}
    assert (4, 0) in plans["none"]


def test_a_search_finds_the_best_of_dispatchers_with_one_row_for_each_rank() -> None:
    """Two experts on a rank, so that some of a token's two choices share one."""
    several = {"dispatcher": ("usual", "once_per_rank")}
    fixed = FEW | {"zero": 1, "tp": 1, "overlap": ()}
    same_answer(SearchProblem(TINY, 8, 16, fixed, several=several), "perlmutter")


def test_an_all_to_all_takes_at_least_as_long_as_by_the_fastest_dispatcher() -> None:
    """Eight ranks on two nodes of four, so that of two choices 1 - C(4,2)/C(8,2) = 11/14 times two
    nodes hold one: 11/14 of the rows are left where a token goes once to each node. Each rank has
    one expert, so that all rows are left where it goes once to each rank."""
    machine, ranks = MACHINES["perlmutter"], 8
    fabric = MachineFabric(machine, ranks)
    plan = parse_plan("dp=8,ep=8,mbs=1,zero=1", batch=16)
    (ring, *_), _ = fabric.rings([plan.grid.groups("ep")], [True])[0]
    gpt = TINY.changed(experts=8, topk=2, router_groups=0, router_topk_groups=0)
    found = {}
    both = ("usual", "hierarchical")
    for several in (*((name,) for name in (*both, "once_per_node", "once_per_rank")), both):
        fixed = FEW | {"tp": 1, "ep": 8}
        problem = SearchProblem(gpt, ranks, 16, fixed, several={"dispatcher": several})
        space = space_of(problem)
        op_bounds = OpBounds(space, compute_costs(machine, 4, ranks), fabric)
        some = next(sized(space, np.arange(1)))
        op = next(op for op in some.program.ops if op.label == "dispatch.exchange")
        found[several] = int(op_bounds.ticks(some, op)[0])
    nbytes = int(some.values(op.nbytes)[0])
    in_steps = to_ticks(fabric.seconds(IN_STEPS, nbytes, ring))
    assert found["usual",] == to_ticks(fabric.seconds(ALL_TO_ALL, nbytes, ring))
    assert found["hierarchical",] == found["usual", "hierarchical"] == in_steps < found["usual",]
    assert found["once_per_rank",] == found["usual",]
    assert found["once_per_node",] == pytest.approx(
        to_ticks(fabric.seconds(ALL_TO_ALL, nbytes * 11 // 14, ring)), rel=1e-5
    )


@pytest.mark.slow
def test_documents_of_several_lengths_are_searched_with_each_kind_of_context() -> None:
    """Ranks of context wait for the busiest one, in the bounds too."""
    fixed = {key: FEW[key] for key in FEW if key != "zero"} | {"tp": 1, "overlap": ()}
    packed = SMALL.changed(documents="256+70+6x31")
    for cp, kind in ((2, "ring"), (4, "all_gather"), (4, "ulysses")):
        same_answer(
            SearchProblem(packed, 4, 2, fixed | {"cp": cp, "context_kind": kind}), "perlmutter"
        )


def test_ranks_that_trade_rows_for_heads_are_searched_over_several_sizes_of_x() -> None:
    """Of one sort are those whose bands of heads differ in width alone."""
    fixed = FEW | {"cp": 2, "context_kind": "ulysses", "sp": True}
    problem = SearchProblem(SMALL.changed(heads=8), 16, 16, fixed)
    assert {2, 4} <= {plan.tp for plan in every_plan(space_of(problem))}
    same_answer(problem, "perlmutter")


def test_a_dispatcher_without_other_ranks_is_refused_as_a_plan_is() -> None:
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=once_per_node", "ep=1")):
        SearchProblem(TINY, 8, 16, {"dispatcher": "once_per_node", "ep": 1})
