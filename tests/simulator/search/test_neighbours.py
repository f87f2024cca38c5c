"""Plans one change away: which there are, and that each can be run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.search.baselines import every_plan
from simulator.search.neighbours import KINDS, layers_on_stages, legal, neighbours, savers, vpps
from simulator.search.problem import SearchProblem
from simulator.search.space import Space
from simulator.stacks import load_stack
from tests.simulator.search.drawn import DRAWN, MIXTURE, mixtures, models, spaces
from workload.gpt import GPT, find_model
from workload.lowering import check
from workload.plan import Plan

DENSE = GPT.of(name="dense", layers=8, hidden=512, heads=8, ffn=2048, sequence=512, vocab=1000)


def around(problem: SearchProblem, plan: Plan, kind: str) -> set[Plan]:
    return {*neighbours(problem, plan, kind)}


def changed(plan: Plan, other: Plan, *consequences: str) -> dict[str, Any]:
    """What differs in another plan, but for what follows from that."""
    mine, its = plan.as_dict(), other.as_dict()
    return {key: its[key] for key in its if its[key] != mine[key] and key not in consequences}


def test_a_factor_of_two_goes_from_each_axis_to_each_other() -> None:
    """Eight devices as tp=2, dp=4: of tp all may go, of dp half of it or all."""
    plan = Plan(tp=2, dp=4, batch=16, mbs=2, sp=True, zero=1)
    problem = SearchProblem(DENSE, 8, 16, stack=load_stack("megatron-core"))
    found = around(problem, plan, "axes")
    assert {(p.tp, p.dp, p.pp) for p in found} == {
        (1, 8, 1), (1, 4, 2), (4, 2, 1), (8, 1, 1), (2, 2, 2), (2, 1, 4),
    }  # fmt: skip
    assert {p.cp for p in found} == {1}  # 512 tokens are not worth a split
    assert {p.sp for p in found if p.tp == 1} == {False}
    assert {p.zero for p in found if p.dp == 1} == {0}


def test_of_longer_sequences_a_factor_goes_to_context_too() -> None:
    plan = Plan(tp=2, dp=4, batch=16, mbs=2, sp=True, zero=1)
    long = replace(DENSE, sequence=8192)
    problem = SearchProblem(long, 8, 16, stack=load_stack("megatron-core"))
    assert {p.cp for p in around(problem, plan, "axes")} == {1, 2, 4}


def test_micro_batches_double_and_halve_as_long_as_a_rank_has_them() -> None:
    plan = Plan(dp=8, batch=32, mbs=2)
    assert {p.mbs for p in around(SearchProblem(DENSE, 8, 32), plan, "micro-batch")} == {1, 4}


def test_a_plan_with_a_pipeline_has_other_chunks_and_schedules() -> None:
    plan = Plan(pp=2, dp=4, vpp=2, batch=32, mbs=1, zero=1)
    found = around(SearchProblem(DENSE, 8, 32), plan, "schedule")
    assert {p.vpp for p in found if p.pipeline.schedule == "1f1b"} == {1, 4}
    assert {p.pipeline.schedule for p in found} >= {"gpipe", "zb-h1", "zb-v", "dualpipe-v"}
    assert {p.vpp for p in found if p.pipeline.schedule in ("zb-v", "dualpipe-v")} == {2}
    of_stack = SearchProblem(DENSE, 8, 32, stack=load_stack("megatron-core"))
    assert {p.pipeline.schedule for p in around(of_stack, plan, "schedule")} == {"1f1b"}


def test_what_runs_again_is_left_out_step_by_step_and_comes_at_once() -> None:
    """From whole layers to all parts of them, to single ones, to a part of the layers; and from
    nothing to all parts, smaller micro-batches, more sharded states and whole layers."""
    problem = SearchProblem(MIXTURE, 8, 32)
    whole = Plan.of(dp=8, batch=32, mbs=2, zero=1, recompute="full")
    less = {p.training.recompute for p in around(problem, whole, "recomputation")}
    assert less >= {"none", "selective", "layernorm+mlp+moe", "layernorm", "full:3", "full:5"}
    none = whole.changed(recompute="none")
    assert not around(problem, none, "recomputation")
    more = [changed(none, plan) for _, plan in savers(problem, none)]
    assert more == [
        {"recompute": "layernorm+mlp+moe"}, {"mbs": 1}, {"zero": 2}, {"zero": 3},
        {"recompute": "full"},
    ]  # fmt: skip


def test_experts_move_with_the_ranks_that_hold_them() -> None:
    """Where eight ranks of data become four, eight ranks of experts become four too."""
    problem = SearchProblem(MIXTURE, 8, 32)
    plan = Plan(dp=8, ep=8, batch=32, mbs=1, zero=1)
    halved = legal(problem, plan, {"dp": 4, "pp": 2})
    assert halved is not None
    assert (halved.dp, halved.pp, halved.ep) == (4, 2, 4)
    assert {p.ep for p in around(problem, plan, "experts")} == {2, 4}


def test_six_layers_on_four_stages_lie_as_evenly_as_they_can() -> None:
    problem = SearchProblem(MIXTURE, 8, 32)
    assert layers_on_stages(problem, 4, 1)["stage_layers"] == (1, 2, 2, 1)
    assert layers_on_stages(problem, 4, 1, ends_as_layers=True) == {
        "ends_as_layers": True,
        "stage_layers": (),
    }
    assert vpps(find_model("llama-3.1-70b"), 4) == [1, 2, 4, 5, 10, 20]


def test_no_pipeline_has_stages_with_nothing_to_do() -> None:
    """Eight layers, and two ends of the model, have work for ten stages."""
    problem = SearchProblem(DENSE, 64, 64)
    eight = Plan(pp=8, dp=8, batch=64, mbs=1, zero=1)
    assert max(p.pp for p in around(problem, eight, "axes")) == 8
    five = Plan.of(pp=5, dp=2, tp=4, batch=64, mbs=1, stage_layers=(2, 2, 2, 1, 1))
    assert max(p.pp for p in around(SearchProblem(DENSE, 40, 64), five, "axes")) == 10


def test_the_last_stage_may_have_fewer_layers_and_keeps_them() -> None:
    """Of 22 layers the last of four stages has 4 beside 6, or each about as many; of eight 1."""
    problem = SearchProblem(replace(DENSE, layers=22), 8, 32)
    plan = Plan.of(pp=4, dp=2, batch=32, mbs=1, stage_layers=(5, 6, 6, 5))
    fewer = plan.changed(stage_layers=(6, 6, 6, 4))
    assert fewer in around(problem, plan, "schedule")
    assert {p.pipeline.stage_layers for p in around(problem, fewer, "micro-batch")} == {
        (6, 6, 6, 4)
    }
    for change, layers in (
        ({"pp": 8, "dp": 1}, (3, 3, 3, 3, 3, 3, 3, 1)),
        ({"pp": 2, "dp": 4}, ()),
    ):
        other = legal(problem, fewer, change)
        assert other is not None
        assert other.pipeline.stage_layers == layers


def test_what_a_stack_gives_for_another_stage_of_zero_follows_it() -> None:
    """Megatron-FSDP gathers weights ahead and scatters gradients behind."""
    problem = SearchProblem(DENSE, 8, 32, stack=load_stack("megatron-core"))
    plan = Plan.of(dp=8, batch=32, mbs=1, zero=1, overlap=("oar", "dp", "pp"))
    sharded = legal(problem, plan, {"zero": 3})
    assert sharded is not None
    assert {"ors", "oag"} <= {*sharded.training.overlap}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_fixed_fields_stay(kind: str) -> None:
    fixed = {"tp": 2, "mbs": 1, "zero": 1, "recompute": "none", "schedule": "1f1b", "ep": 2}
    problem = SearchProblem(MIXTURE, 8, 32, fixed)
    plan = Plan(tp=2, pp=2, dp=2, ep=2, batch=32, mbs=1, zero=1, sp=True)
    for other in around(problem, plan, kind):
        assert {key: other.value(key) for key in fixed} == fixed


@settings(DRAWN, max_examples=25)
@given(space=st.one_of(spaces(gpts=models()), spaces(gpts=mixtures())), data=st.data())
def test_every_neighbour_can_be_run_on_as_many_devices(space: Space, data: st.DataObject) -> None:
    problem = space.problem
    plans = [plan for _, plan in zip(range(200), every_plan(space), strict=False)]
    plan = data.draw(st.sampled_from(plans))
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    for other in neighbours(problem, plan, kind):
        assert other != plan
        assert (other.grid.ranks, other.batch) == (plan.grid.ranks, plan.batch)
        check(problem.gpt, other)
        problem.stack.check(other, problem.gpt)
        trained = ("precision", "recipe", "optimizer", "moments", "master", "gradients", "loss")
        assert not {*changed(plan, other)} & {*trained, "offload", "attention", "loss_chunks"}
