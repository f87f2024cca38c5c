"""The critical path of small programs whose timing can be worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.attribution.critical_path import (
    Cause,
    cause_of,
    simulated_step,
    ticks_by_cause,
)
from simulator.engine.ticks import TICKS_PER_S
from tests.simulator.worlds import (
    TINY,
    GivenSeconds,
    SmallCosts,
    SmallFabric,
    by_hand,
    compute,
    lowered,
    plan_of,
    reduce,
)
from workload.gpt import find_model
from workload.kinds import Work
from workload.lowering import lower
from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH
from workload.plan_text import parse_plan

FABRIC = SmallFabric(bytes_per_s=1e6, launch_s=0.0)  # two ranks all-reduce 1 MB in 1 s


def names(*ops: object, **seconds: float) -> list[str]:
    program = by_hand("tp=2", *ops)  # type: ignore[arg-type]
    path = simulated_step([program], GivenSeconds(**seconds), FABRIC).path()
    return [piece.op.name for piece in path]


def test_of_two_streams_the_path_takes_the_one_that_the_last_op_waited_for() -> None:
    ops = (
        compute("first", writes="a"),
        reduce("gather", "a", "tp", 1_000_000, "tp"),
        compute("beside", writes="b"),
        compute("last", reads="a b", writes="c"),
    )
    assert names(*ops, first=1.0, beside=0.5, last=1.0) == ["first", "gather", "last"]
    assert names(*ops, first=1.0, beside=2.0, last=1.0) == ["first", "beside", "last"]


def test_the_path_leads_through_the_rank_that_came_late_to_a_collective() -> None:
    """tp=3 on nodes of 4: ranks 3 to 5 lie in two nodes, so their first all-reduce takes 1 us more,
    and rank 0 waits for its like in the all-reduce over data."""
    program = by_hand(
        "tp=3,dp=4",
        reduce("inner", "a", "tp", 0),
        compute("work", reads="a", writes="b"),
        reduce("outer", "b", "dp", 0),
    )
    fabric = SmallFabric(bytes_per_s=1e6, launch_s=1e-6)
    path = simulated_step([program], GivenSeconds(work=1.0), fabric).path()
    assert [piece.op.name for piece in path] == ["inner", "work", "outer"]
    assert path[0].ticks == 2_000_000
    assert path[0].rank == path[1].rank == 3


def test_time_is_filed_under_kinds_of_compute_and_collectives_over_axes() -> None:
    program = by_hand(
        "tp=2", compute("first", writes="a"), reduce("sum", "a", "tp", 1_000_000), compute("last")
    )
    path = simulated_step([program], GivenSeconds(first=1.0, last=0.5), FABRIC).path()
    second = TICKS_PER_S
    kernels, sums = Cause("", "elementwise kernels"), Cause("tp", "all-reduces")
    assert ticks_by_cause(path) == {kernels: 3 * second // 2, sums: second}
    assert [str(cause) for cause in (kernels, sums)] == ["elementwise kernels", "tp all-reduces"]


def test_every_op_of_a_step_has_its_cause() -> None:
    """Squares for the norm, the clip's scale and AdamW are the optimizer's, but not their sums."""
    program = lowered(TINY, "tp=2,dp=2,recompute=none")
    found: dict[str, set[str]] = {}
    for op in program.ops:
        found.setdefault(str(cause_of(op)), set()).add(op.kind)
    kernels = found.pop("elementwise kernels")
    assert found == {
        "optimizer": {"square_sum", "clip_scale", "scale", "adamw"},
        "matmuls": {"matmul"},
        "attention": {"attention", "attention_grad"},
        "tp all-reduces": {"all_reduce"},
        "dp all-reduces": {"all_reduce"},
    }
    assert kernels >= {"gelu", "layernorm", "add", "bias", "accumulate", "loss_mean"}
    assert not kernels & set().union(*found.values())


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_the_path_of_a_pipeline_crosses_its_stages_and_fills_the_step(schedule: str) -> None:
    plan = plan_of(f"pp=2,dp=2,schedule={schedule}", 4)
    stages = [lower(TINY, plan, stage) for stage in range(2)]
    whole = simulated_step(stages, SmallCosts(), SmallFabric(bytes_per_s=1e8))
    path = whole.path()
    assert {piece.rank for piece in path} == {0, 2}
    assert sum(piece.ticks for piece in path) == max(max(ends) for _, ends in whole.times)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    plan=st.sampled_from(["tp=2,y=2,z=2", "z=4,dp=2", "tp=3,dp=4", "dp=6", "tp=2,z=3,dp=2"]),
    overlap=st.sampled_from(["none", "all", "oar", "ors+oag", "dp"]),
    bytes_per_s=st.floats(1e5, 1e12),
)
def test_the_path_fills_the_whole_step_without_a_gap(
    plan: str, overlap: str, bytes_per_s: float
) -> None:
    gpt = TINY.changed(hidden=96, heads=12, ffn=96)
    program = lowered(gpt, f"{plan},overlap={overlap}")
    fabric = SmallFabric(bytes_per_s=bytes_per_s, compute_share=0.1)
    whole = simulated_step([program], SmallCosts(), fabric)
    path = whole.path()
    assert path[0].start_ticks == 0
    assert path[-1].end_ticks == max(max(ends) for _, ends in whole.times)
    assert all(a.end_ticks == b.start_ticks for a, b in pairwise(path))


def test_what_experts_and_recipes_bring_has_names_of_its_own() -> None:
    gpt = find_model("tiny-mixtral-130k")
    program = lower(gpt, parse_plan("dp=2,ep=2,cp=2,recipe=fp8-tensorwise", batch=2))
    found: dict[str, set[str]] = {}
    for op in program.ops:
        found.setdefault(str(cause_of(op)), set()).add(op.kind)
    assert found["ep all-to-alls"] == {"all_to_all"}
    assert found[f"cp {Work.RING_SHIFTS.value}"] == {"ring_shift"}
    assert found[Work.CASTS.value] == {"amax", "quantise"}
    assert {"take_rows", "sum_rows", "sort_rows"} <= found[Work.ROWS.value]
    assert found["routing"] == {"route", "route_grad"}


@pytest.mark.parametrize("plan", ["dp=2,ep=2", "dp=2,ep=2,cp=2"])
def test_experts_rows_are_filed_under_experts_both_there_and_back(plan: str) -> None:
    """With cp=2 both exchanges are along context, which says less than what they are for."""
    program = lower(find_model("tiny-mixtral-130k"), parse_plan(plan, batch=2))
    exchanges = [op for op in program.ops if op.kind == "all_to_all"]
    assert {op.purpose for op in exchanges} == {EXPERT_DISPATCH, EXPERT_COMBINE}
    assert {cause_of(op) for op in exchanges} == {Cause("ep", "all-to-alls")}
