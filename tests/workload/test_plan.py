"""The plan's grammar and the grid's arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from tests.messages import names
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import find_model
from workload.grid import AXES, Grid
from workload.lowering import lower
from workload.overlaps import OVERLAPS
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.splits.plan_values import CHOICES, PRECISIONS


def test_the_plan_of_the_text_is_printed_back() -> None:
    text = "tp=2,pp=4,vpp=2,cp=2,ep=2,dp=16,mbs=4,sp=true,recompute=full"
    assert str(parse_plan(text, batch=8192)) == text


def test_a_plan_in_three_dimensions_has_axonns_words() -> None:
    text = "x=2,y=2,z=8,dp=16,mbs=4,recompute=full"
    assert str(parse_plan(text, batch=8192)) == text
    assert parse_plan(text, batch=8192).tp == 2


def test_sizes_of_one_are_left_out() -> None:
    assert str(parse_plan("tp=1,pp=2,dp=1,mbs=1", batch=4)) == "pp=2,mbs=1"
    assert str(parse_plan("tp=1,zero=1", batch=4)) == "dp=1,zero=1"


def test_a_micro_batch_that_is_the_whole_share_is_left_out() -> None:
    assert str(parse_plan("z=2,dp=2,mbs=4", batch=16)) == "z=2,dp=2"


def test_rest_fills_the_machine() -> None:
    assert parse_plan("tp=2,z=4,dp=rest", devices=64).dp == 8


def test_a_table_of_the_same_keys_is_the_same_plan() -> None:
    text = parse_plan("tp=2,dp=4,overlap=oar+dp,precision=fp32", batch=8)
    table = {"tp": 2, "dp": 4, "overlap": ["dp", "oar"], "precision": "fp32", "batch": 8}
    assert parse_plan(table) == text


sizes = st.sampled_from([1, 2, 3, 4, 8])
few = st.sampled_from([1, 2, 3])  # of which every axis may have some


@few_and_many(
    40,
    100,
    settings(),
    axes=st.tuples(sizes, sizes, sizes, sizes),
    micro=sizes,
    count=sizes,
    overlap=st.sets(st.sampled_from(OVERLAPS)),
    recompute=st.sampled_from(("none", "selective", "full", "full:3")),
    precision=st.sampled_from(PRECISIONS),
    zero=st.sampled_from((0, 1, 2, 3)),
    reshard=st.booleans(),
    offload=st.sampled_from(CHOICES["offload"]),
    optimizer=st.sampled_from(("adamw", "sgd-momentum", "muon")),
)
def test_every_plan_is_read_back_from_its_text_and_its_table(
    axes: tuple[int, ...],
    micro: int,
    count: int,
    overlap: set[str],
    recompute: str,
    precision: str,
    zero: int,
    reshard: bool,
    offload: str,
    optimizer: str,
) -> None:
    x, y, z, data = axes
    zero = 3 if offload == "parameters" else zero
    plan = Plan.of(
        tp=x,
        y=y,
        z=z,
        dp=data,
        batch=z * data * micro * count,
        mbs=micro,
        overlap=tuple(switch for switch in OVERLAPS if switch in overlap),
        recompute=recompute,
        precision=precision,
        zero=zero,
        shard=data // 2 if zero and data % 2 == 0 else 0,
        reshard=reshard,
        offload=offload,
        optimizer="adamw" if offload in ("update", "parameters") else optimizer,
        gradients="bf16" if precision == "bf16" else "fp32",
    )
    assert parse_plan(str(plan), batch=plan.batch) == plan
    assert parse_plan(plan.as_dict()) == plan


@pytest.mark.parametrize("key", ["tp", "dp", "batch", "mbs", "vpp"])
def test_a_count_beyond_any_plan_is_refused(key: str) -> None:
    """Products of two counts stay within 64 bits, however a plan is made."""
    with pytest.raises(PlanError, check=names(f"{key}=1000000001", "1,000,000,000")):
        Plan(batch=1, mbs=1).changed(**{key: 10**9 + 1})
    with pytest.raises(PlanError, check=names("batch=9223372036854775808")):
        parse_plan("tp=1", batch=2**63)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("q=2", ("q",)),
        ("recompute=full:" + "9" * 5000, ("full:N",)),
        ("tp=10000000000", ("tp=10000000000", "1,000,000,000")),
        ("dat=2", ("dat", "dp")),
        ("expert_parallel=8", ("ep=8",)),
        ("tp", ("'tp'",)),
        ("tp=2,tp=2", ("tp",)),
        ("tp=two", ("tp=two",)),
        ("tp=0", ("tp=0", "1")),
        ("tp=-2", ("tp=-2", "1")),
        ("zero=4", ("zero=4", "0", "1", "2", "3")),
        ("shard=2,dp=4", ("shard=2", "zero=1", "2", "3")),
        ("sp=yes", ("sp=yes", "true", "false")),
        ("vpp=2", ("vpp=2", "pp")),
        ("pp=2,stage_layers=1+2+3", ("stage_layers", "3", "pp=2", "vpp=1", "2")),
        ("recompute=full:0", ("recompute=full:0", "full:N")),
        ("recompute=selective:2", ("recompute=selective:2", "full:N")),
        ("recompute=some", ("recompute=some", "none", "selective", "full")),
        ("overlap=all+none", ("overlap=none",)),
        ("precision=fp16", ("precision=fp16",)),
        ("dp=rest", ("dp=rest",)),
        ("batch=8", ("batch=8", "batch=16")),
    ],
)
def test_a_plan_that_cannot_be_read_is_refused(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, check=names(*named)):
        parse_plan(text, batch=16)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dp=3", ("batch=16", "dp=3", "15", "18")),
        ("dp=2,mbs=3", ("mbs=3", "8")),
        ("tp=2,y=2", ("4", "8", "dp=rest")),
        ("tp=3,dp=rest", ("tp=3", "8", "tp=2", "4")),
    ],
)
def test_a_plan_that_does_not_divide_says_what_would(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        parse_plan(text, batch=16, devices=8 if "," in text and "mbs" not in text else None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tp=3", ("tp=3", "heads=8", "ffn=512", "2", "4")),
        ("y=5", ("y=5", "hidden=128", "4", "8")),
    ],
)
def test_a_plan_that_does_not_divide_the_model_says_what_would(
    text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        lower(find_model("tiny-1m"), parse_plan(text))


def test_x_must_divide_the_inner_width_of_the_mlp() -> None:
    """Llama's 11008 would leave three ranks 3669 columns each, and one column to nobody."""
    gpt = find_model("tiny-1m").changed(heads=12, hidden=96, ffn=11008)
    with pytest.raises(PlanCannotRunError, check=names("tp=3", "ffn=11008", "2", "4")):
        lower(gpt, parse_plan("tp=3"))
    lower(replace(gpt, ffn=11007), parse_plan("tp=3"))


def test_x_must_divide_the_key_heads_that_queries_share() -> None:
    with pytest.raises(PlanCannotRunError, check=names("tp=8", "kv_heads=4", "4")):
        lower(find_model("tiny-llama-1m"), parse_plan("tp=8"))


def test_x_must_divide_the_rows_that_sequence_parallelism_splits() -> None:
    gpt, text = replace(find_model("tiny-1m"), sequence=30), "tp=4,sp=true"
    with pytest.raises(PlanCannotRunError, check=names("tp=4", "micro-batch=30")):
        lower(gpt, parse_plan(text))
    lower(gpt, parse_plan(f"{text},mbs=2"))


def test_x_is_the_fastest_axis_of_the_rank_order() -> None:
    grid = Grid(tp=2, y=3, z=2, dp=2)
    first = grid.coordinates(1)
    assert {axis: first[axis] for axis in AXES} == dict.fromkeys(AXES, 0) | {"tp": 1}
    assert grid.coordinates(2)["y"] == 1
    assert grid.coordinates(6)["z"] == 1
    assert grid.coordinates(12)["dp"] == 1


def test_what_a_grid_has_worked_out_is_no_part_of_its_text() -> None:
    grid, text = Grid(tp=2, y=3), repr(Grid(tp=2, y=3))
    assert grid.coordinates(5)["y"] == 2
    assert repr(grid) == text


def test_an_order_says_on_which_axis_ranks_are_neighbours() -> None:
    grid = parse_plan("tp=2,z=3,pp=2,order=pp-z-tp-y-dp").grid
    assert [grid.stride(axis) for axis in ("pp", "z", "tp")] == [1, 2, 6]
    assert grid.groups("pp").tolist()[:2] == [[0, 1], [2, 3]]
    assert grid.groups("z").tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert grid.groups("link0").tolist()[0] == [0, 1]
    assert grid.stages().tolist() == [0, 1] * 6


def test_an_order_names_every_axis_once() -> None:
    with pytest.raises(PlanError, check=names("order=tp-y")):
        parse_plan("tp=2,order=tp-y")
    plan = parse_plan("tp=2,dp=2,order=dp-y-z-tp-pp")
    assert str(plan) == "tp=2,dp=2,order=dp-y-z-tp-pp"
    assert parse_plan(str(plan)) == plan


@given(
    shape=st.fixed_dictionaries(dict.fromkeys(AXES, sizes)),
    axes=st.sets(st.sampled_from(AXES)),
    order=st.permutations(AXES),
)
def test_in_any_order_groups_differ_in_their_axes_alone(
    shape: dict[str, Any], axes: set[str], order: list[str]
) -> None:
    grid = replace(Grid(**shape), order="-".join(order))
    assert sorted(grid.groups(*axes).ravel().tolist()) == list(range(grid.ranks))
    assert_groups_differ_in(grid, axes)


def assert_groups_differ_in(grid: Grid, axes: set[str]) -> None:
    """Ranks of a group have one place on all other axes, lie in their order, and are found again
    from their places; of all groups at once, since places of arrays are arrays of places."""
    groups: Any = grid.groups(*axes)
    places: Any = grid.coordinates(groups)
    for axis in AXES:
        if axis not in axes:
            assert (places[axis] == places[axis][:, :1]).all()
    assert (grid.rank(places) == groups).all()
    assert (np.diff(groups) > 0).all()


def test_groups_differ_in_their_axis_alone() -> None:
    grid = Grid(tp=2, y=2, z=2)
    assert grid.groups("y").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.groups("tp", "y").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@given(shape=st.fixed_dictionaries(dict.fromkeys(AXES, few)), axes=st.sets(st.sampled_from(AXES)))
def test_groups_partition_the_ranks(shape: dict[str, Any], axes: set[str]) -> None:
    grid = Grid(**shape)
    groups = grid.groups(*axes)
    assert groups.shape[1] == grid.size(*axes)
    assert sorted(groups.ravel().tolist()) == list(range(grid.ranks))
    assert_groups_differ_in(grid, axes)


def test_data_is_runs_of_neighbours_that_share_shards() -> None:
    grid = Grid(tp=2, dp=4, shard=2)
    assert grid.groups("shard").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.groups("replica").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert grid.groups("dp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert grid.coordinates(6) | {"tp": 0} == grid.coordinates(7) | {"tp": 0}
    assert grid.coordinates(6)["shard"] == 1
    assert grid.coordinates(6)["replica"] == 1


def test_the_ends_of_a_pipeline_are_its_first_and_its_last_stage() -> None:
    assert Grid(tp=2, pp=4).groups("ends").tolist() == [[0, 6], [1, 7]]
    assert Grid(tp=2, pp=4).size("ends") == 2
    assert Grid(tp=2).size("ends") == 1
