"""Which ranks have parts of the same experts, different ones, and copies: counted by hand, and as
Megatron-Core counts them; and what is refused."""

from __future__ import annotations

from itertools import product

import pytest

from tests.messages import names
from tests.workload.test_experts import ROWS, of_layer, program_of
from workload.errors import NearestError, PlanCannotRunError, PlanError
from workload.grid import Axes, Grid
from workload.plan_text import parse_plan


def test_ranks_of_x_gather_rows_of_those_with_parts_of_the_same_experts() -> None:
    """Two ranks of x have halves of four experts each, and two others halves of the other four."""
    program = program_of("tp=4,ep=2,etp=2,sp=true")
    assert program.plan.grid.groups("inner_tp").tolist() == [[0, 1], [2, 3]]
    gathered = of_layer(program, "experts.rows.gather")
    assert (gathered.axes, gathered.nbytes) == (("inner_tp",), (ROWS // 2) * 32 * 2)
    sent = of_layer(program, "dispatch.exchange")
    assert (sent.axes, sent.nbytes) == (("outer_tp",), 2 * (ROWS // 2) * 32 * 2)
    assert of_layer(program, "experts.reduce").axes == ("inner_tp",)
    held = program.buffers["l1.experts.up.w"]
    assert (held.elements, held.replicas) == (4 * 32 * 48, 1)


def test_an_experts_matrices_can_be_split_over_more_ranks_than_others() -> None:
    program = program_of("tp=2,dp=4,ep=2,etp=4,sp=true")
    gathered = of_layer(program, "experts.rows.gather")
    assert (gathered.axes, gathered.nbytes) == (("tp", "etp"), 2 * ROWS * 32 * 2)
    assert of_layer(program, "dispatch.exchange").axes == ("ep",)
    assert program.buffers["l1.experts.up.w"].elements == 4 * 32 * 96 // 4


def test_ranks_of_x_may_hold_copies_of_whole_experts() -> None:
    program = program_of("tp=4,dp=2,ep=2,etp=1,sp=true")
    sums = {op.label: op.axes for op in program.ops if op.micro_batch < 0}
    assert of_layer(program, "dispatch.exchange").axes == ("inner_tp",)
    assert sums["experts.grads.reduce"] == ("outer_tp", "edp")
    held = program.buffers["l1.experts.up.w"]
    assert (held.elements, held.replicas) == (4 * 32 * 96, 4)
    sharded = program_of("tp=4,dp=2,ep=2,etp=1,sp=true,zero=1")
    assert sharded.buffers["l1.experts.up.w.m"].elements == 4 * 32 * 96 // 4


def test_states_of_experts_are_sharded_within_runs_of_data_and_copied_over_the_rest() -> None:
    """Eight ranks: two hold different experts, so that a run of four has two copies of each."""
    program = program_of("dp=8,ep=2,zero=3,shard=4,batch=16")
    grid = program.plan.grid
    assert grid.groups("ep").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert grid.groups("edp_shard").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.groups("shard").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grid.groups("replica").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert grid.groups("edp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [grid.coordinates(6)[axis] for axis in ("shard", "replica", "edp")] == [
        2,
        1,
        3,
    ]
    held = program.buffers["l1.experts.up.w"]
    assert (held.elements, held.replicas) == (8 * 32 * 96 // 4, 2)
    assert program.buffers["l1.qkv.w"].elements == 32 * 96 // 4
    sums = {(op.kind, op.axes) for op in program.ops if "experts.up" in op.label and op.axes}
    assert ("all_gather", ("edp_shard",)) in sums
    copies = {op.axes for op in program.ops if op.kind == "all_reduce" and op.micro_batch < 0}
    assert ("replica",) in copies


def test_experts_lie_over_context_first_and_then_over_data() -> None:
    """As Megatron's folding has it: of 2 x 4 ranks of context and data, neighbours."""
    grid = parse_plan("cp=2,dp=4,ep=4,batch=4").grid
    assert grid.groups("cp", "ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grid.groups("edp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    program = program_of("cp=2,dp=4,ep=4,batch=8")
    sent = of_layer(program, "dispatch.exchange")
    assert (sent.axes, sent.nbytes) == (("cp", "ep"), 2 * (ROWS // 2) * 32 * 2)
    sums = {op.label: op.axes for op in program.ops if op.micro_batch < 0}
    assert sums["experts.grads.reduce"] == ("edp",)
    assert sums["grads.reduce"] == ("cp", "dp")
    assert program.buffers["l1.experts.up.w"].replicas == 2


def test_fewer_experts_ranks_than_context_are_neighbours_of_a_part_of_it() -> None:
    plan = parse_plan("cp=4,dp=2,ep=2,batch=4")
    assert plan.expert_axes == ("inner_cp",)
    assert plan.grid.groups("inner_cp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    copies = [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert plan.grid.groups(*plan.expert_copies).tolist() == copies
    with pytest.raises(PlanCannotRunError, check=names("ep=6", "dp=3", "cp=4")):
        parse_plan("cp=4,dp=3,ep=6,batch=6")


def part_of(grid: Grid, rank: int, axes: Axes) -> int:
    """Which of the parts over these axes a rank has."""
    part, at = 0, grid.coordinates(rank)
    for axis in reversed(axes):
        part = part * grid.size(axis) + at[axis]
    return part


@pytest.mark.parametrize(
    ("sizes", "least"),
    [
        (((1, 4), (1, 2), (1, 2)), 20),
        pytest.param(((1, 2, 8), (1, 4), (1, 2, 4)), 100, marks=pytest.mark.slow),
    ],
)
def test_ranks_have_the_parts_the_experts_and_the_copies_of_megatrons_grid(
    sizes: tuple[tuple[int, ...], ...], least: int
) -> None:
    """Megatron-Core counts ranks of experts by themselves: those of one expert's parts first, then
    those of different experts, then copies (core/parallel_state.py, order tp-ep-dp)."""
    counted = 0
    for x, context, data in product(*sizes):
        own = x * context * data
        for tensor, expert in product((1, 2, 4, 8), repeat=2):
            if own % (tensor * expert):
                continue
            text = f"tp={x},cp={context},dp={data},ep={expert},etp={tensor}"
            sequences = ",sp=true" if x > 1 else ""
            plan = parse_plan(f"{text}{sequences},batch={data}")
            copies = plan.expert_copies if plan.folds_experts else ("cp", "dp")
            axes = plan.expert_tensor_axes, plan.expert_axes, copies
            for rank in range(own):
                found = tuple(part_of(plan.grid, rank, each) for each in axes)
                there = rank // tensor
                assert found == (rank % tensor, there % expert, there // expert), (text, rank)
            counted += 1
    assert counted > least


def test_where_tensor_parallelism_holds_all_experts_context_holds_copies() -> None:
    program = program_of("tp=2,cp=2,dp=1,ep=2,etp=1,sp=true")
    assert of_layer(program, "dispatch.exchange").axes == ("tp",)
    sums = {op.label: op.axes for op in program.ops if op.micro_batch < 0}
    assert sums["experts.grads.reduce"] == ("cp",)
    assert program.buffers["l1.experts.up.w"].elements == 4 * 32 * 96


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("tp=4,dp=2,ep=8", ("etp=1", "sp=true")),
        ("tp=4,dp=2,ep=8,sp=true", ("etp=1",)),
        ("tp=4,dp=2,ep=8,etp=2,sp=true", ("etp=1",)),
        ("dp=8,ep=8,etp=2", ("etp=1",)),
    ],
)
def test_more_ranks_of_experts_than_parts_of_them_leave_are_told_of_whole_ones(
    words: str, instead: tuple[str, ...]
) -> None:
    with pytest.raises(NearestError, check=names(*instead)) as refused:
        program_of(words)
    assert refused.value.instead.count("=") == len(instead)
    of_each = [word for word in words.split(",") if not word.startswith(("sp=", "etp="))]
    assert program_of(",".join([*of_each, "etp=1", "sp=true"])).ops
    with pytest.raises(NearestError) as refused:
        program_of(words.replace("ep=8", "ep=3"))
    assert not refused.value.instead


@pytest.mark.parametrize(
    ("plan", "error", "named"),
    [
        ("dp=4,ep=3", PlanCannotRunError, ("dp=4", "2", "4")),
        ("dp=32,ep=48", PlanCannotRunError, ("dp=32", "32")),
        ("dp=12,ep=8", PlanCannotRunError, ("dp=12", "6", "12")),
        (
            "cp=4,dp=6,ep=6",
            PlanCannotRunError,
            ("ep=6", "dp=6", "cp=4", "4", "8"),
        ),
        ("tp=2,dp=2,ep=2,etp=1", PlanError, ("sp",)),
        (
            "tp=2,dp=2,ep=2,etp=3,sp=true",
            PlanCannotRunError,
            ("etp=3", "dp=2", "tp=2", "2", "4"),
        ),
        (
            "tp=4,dp=6,ep=8,etp=2,sp=true",
            PlanCannotRunError,
            ("ep=8", "dp=6", "tp/2=2", "tp/2", "6", "12"),
        ),
        (
            "tp=4,cp=2,dp=3,ep=16,etp=1,sp=true",
            PlanCannotRunError,
            ("ep=16", "dp=3", "cp=2", "tp=4", "8", "24"),
        ),
        ("dp=16,ep=16", PlanCannotRunError, ("ep=16", "experts=8")),
        (
            "dp=8,ep=4,zero=1,shard=2",
            PlanCannotRunError,
            ("shard=2", "4", "experts"),
        ),
        (
            "dp=4,ep=2,optimizer=mezo",
            PlanCannotRunError,
            ("optimizer=mezo", "experts=8", "adamw", "sgd"),
        ),
    ],
)
def test_a_plan_that_cannot_split_experts_is_refused(
    plan: str, error: type[Exception], named: tuple[str, ...]
) -> None:
    with pytest.raises(error, check=names(*named)):
        program_of(plan)
