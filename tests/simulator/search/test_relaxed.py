"""Relaxed shapes rule out no row that another bound leaves open."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from simulator.costs.analytic import compute_costs
from simulator.ranks.fabric import MachineFabric
from simulator.search import search
from simulator.search.asked.turns import least_ticks
from simulator.search.baselines import exhaustive
from simulator.search.bounds.batched_programs import kinds, sized
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import part_times
from simulator.search.bounds.stream_bound import BusiestStream
from simulator.search.objective import OBJECTIVES, Objective
from simulator.search.problem import SearchProblem
from simulator.search.progress import Tally
from simulator.search.relaxed.shapes import WHOLE, is_relaxed, vocabulary_rows
from simulator.search.relaxed.unbounded import UnboundedRows, relaxed_rows, share_of
from simulator.search.root_nodes import NEVER, Machinery, entries_of, times_for
from simulator.search.space import Space, space_of, spaces_of
from simulator.search.tree_nodes import in_every_order
from simulator.stacks import load_stack
from simulator.stacks.searched import fastest_kernels
from tests.examples import few_and_many
from tests.messages import assert_names
from tests.simulator.search.drawn import DRAWN, MACHINES, UNSHRUNK, mixtures, models, spaces
from tests.simulator.search.measured_tables import measured
from tests.simulator.search.test_asked import spaces_with_parts, spaces_with_traded_heads
from tests.simulator.search.test_asked_orders import spaces_in_a_v, spaces_in_turns
from tests.simulator.search.test_branch_and_bound import same_answer
from tests.simulator.search.test_expert_splits import spaces_of_other_ranks
from tests.simulator.search.test_layer_kinds import in_windows
from tests.simulator.search.test_unsupported import FEW, SMALL
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, STEP
from workload.passes.stack import NO_HABITS
from workload.sizes.arrays import Values

MIXTURE = GPT(
    name="mixture",
    layers=6,
    hidden=512,
    heads=8,
    ffn=2048,
    sequence=1024,
    vocab=1000,
    kv_heads=4,
    activation="swiglu",
    positions="rope",
    experts=8,
    topk=2,
    expert_ffn=512,
    dense_layers=1,
)
EACH = 31  # of rows whose bounds are made one by one
SUMS = BUCKET_SCATTER, BUCKET_REDUCE  # of gradients over data, which follow the slots
EVERY = st.one_of(
    *(spaces(), spaces(gpts=mixtures()), spaces(gpts=in_windows()), spaces_of_other_ranks()),
    *(spaces_in_turns(), spaces_in_a_v(), spaces_with_parts(), spaces_with_traded_heads()),
)


def machinery_of(problem: SearchProblem, name: str) -> Machinery:
    machine, ranks = MACHINES[name], problem.devices
    fabric = MachineFabric(machine, ranks)
    kernels = fastest_kernels(problem.stack, problem.gpt, problem.fixed, machine)
    costs = compute_costs(machine, fabric.ranks_per_node, ranks, kernels)
    return Machinery(costs, fabric, 0)


def bounds_of(space: Space, row: int, machinery: Machinery, goal: Objective) -> Values:
    """The bounds of the programs of one row, as the root of a search has them, in every order."""
    op_bounds, habits = OpBounds(space, machinery.costs, machinery.fabric), space.problem.habits
    some, found = next(sized(space, np.array([row]), habits=habits)), list[Values]()
    for entries in entries_of(space, some.rows):
        placed, own = in_every_order(space, some, entries)
        busiest = BusiestStream(times_for(own, part_times(op_bounds, placed)), own, None)
        found.append(goal.bound(least_ticks(space.problem, busiest), busiest.busy()))
    return np.concatenate(found)


def holds_for_one_row(space: Space, name: str, data: st.DataObject) -> None:
    """A row stays open where its least bound is below what a plan must undercut."""
    problem, row = space.problem, data.draw(st.integers(0, len(space) - 1))
    if not is_relaxed(problem):
        reject()
    goal = Objective(data.draw(st.sampled_from(OBJECTIVES)), MACHINES[name], problem.devices)
    machinery = machinery_of(problem, name)
    relaxed = relaxed_rows(space, machinery, goal)
    shape = relaxed.layers.of_row[[row]]
    least = int(bounds_of(space, row, machinery, goal).min())
    assert relaxed.low(shape, least + 1)[relaxed.rows_of(shape) == row].all()


def has_the_ops_of_its_relaxed_shape(space: Space, row: int) -> None:
    """A row has each op that its relaxed shape counts, with as many bytes or more, the same FLOPs
    and the same axes of several ranks; collectives on one rank do not count."""
    goal, habits = Objective("time", MACHINES["alps"], space.problem.devices), space.problem.habits
    layers = relaxed_rows(space, machinery_of(space.problem, "alps"), goal).layers
    lowered = layers.lowered[int(space.columns["zero"][row] == WHOLE)]
    how: dict[str, Any] = {"together": True, "habits": habits, "most": 1}
    relaxed = layers.counted(next(sized(lowered, layers.of_row[[row]], **how)))
    alone = next(sized(space, np.array([row]), habits=habits))
    own = {(op.label, op.kind, op.block): op for op in alone.program.ops}
    grid = alone.program.plan.grid
    for op in relaxed.program.ops:
        wide = {axis for axis in op.axes if grid.size(axis) > 1}
        if op.block == STEP or op.purpose in SUMS or (op.communicates and not wide):
            continue
        other = own[op.label, op.kind, op.block]
        assert wide == {axis for axis in other.axes if grid.size(axis) > 1}, op.name
        if not layers.apart[row]:
            assert relaxed.values(op.nbytes) <= alone.values(other.nbytes), op.name
            assert relaxed.values(op.flops) == alone.values(other.flops), op.name


def mostly_slow(*axes: list[int], quick: list[tuple[int, ...]]) -> list[Any]:
    """All combinations as parameters; those beside a few are slow tests."""
    return [
        pytest.param(*each, marks=() if each in quick else pytest.mark.slow)
        for each in product(*axes)
    ]


def with_vocabulary(vocab: int, hidden: int) -> GPT:
    """A model of one layer whose vocabulary ZeRO on many ranks may add rows to."""
    return GPT(
        name="padded",
        layers=1,
        hidden=hidden,
        heads=4,
        ffn=hidden,
        sequence=1024,
        vocab=vocab,
        activation="gelu",
        positions="learned",
    )


@pytest.mark.parametrize(
    ("z", "zero"), mostly_slow([1, 2], [1, 2, 3], quick=[(1, 1), (2, 2), (1, 3)])
)
def test_more_rows_of_the_vocabulary_may_take_less_time(z: int, zero: int) -> None:
    """Matmuls with an odd number of rows have half the rate of those with an even one."""
    fixed: dict[str, Any] = {"tp": 1, "y": 1, "z": z, "pp": 1, "mbs": 8}
    problem = SearchProblem(
        with_vocabulary(50257, 200), 64, 64 * 8 * 8, fixed | {"recompute": "none"}
    )
    space = space_of(problem)
    goal, machinery = Objective("time", MACHINES["alps"], 64), machinery_of(problem, "alps")
    relaxed = relaxed_rows(space, machinery, goal)
    for row in np.flatnonzero(space.columns["zero"] == zero).tolist():
        shape = relaxed.layers.of_row[[row]]
        least = int(bounds_of(space, row, machinery, goal).min())
        assert relaxed.low(shape, least + 1)[relaxed.rows_of(shape) == row].all()
        has_the_ops_of_its_relaxed_shape(space, row)
    others = vocabulary_rows(space) != 50257  # with ZeRO-3 too: what counts first has no weights
    assert relaxed.layers.apart.tolist() == others.tolist()
    assert others.any()


@few_and_many(
    10,
    50,
    DRAWN,
    hidden=st.sampled_from([40, 200, 320, 512]),
    vocab=st.integers(500, 520),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 4, 8])] * 4),
    zero=st.integers(0, 3),
)
def test_rows_of_the_vocabulary_are_those_of_programs(
    hidden: int, vocab: int, sizes: tuple[int, ...], zero: int
) -> None:
    x, z, data, shard = sizes
    fixed: dict[str, Any] = {"tp": x, "y": 1, "z": z, "pp": 1, "mbs": 1, "zero": zero}
    if zero and data % shard == 0:
        fixed["shard"] = shard
    gpt = with_vocabulary(vocab, hidden)
    try:
        space = space_of(SearchProblem(gpt, x * z * data, z * data, fixed))
    except (PlanCannotRunError, PlanError):
        reject()
    for row in range(len(space)):
        program = next(sized(space, np.array([row]))).program
        assert vocabulary_rows(space)[row] == program.layouts["embed.w"].padded[0] // x


@few_and_many(12, 60, DRAWN, space=EVERY, data=st.data())
def test_relaxed_shapes_have_no_op_that_a_row_lacks(space: Space, data: st.DataObject) -> None:
    if not is_relaxed(space.problem):
        reject()
    has_the_ops_of_its_relaxed_shape(space, data.draw(st.integers(0, len(space) - 1)))


@pytest.mark.parametrize(
    ("z", "zero"), mostly_slow([1, 2], [0, 1, 2, 3], quick=[(1, 0), (2, 1), (2, 3)])
)
def test_one_micro_batch_has_the_ops_of_its_relaxed_shape(z: int, zero: int) -> None:
    """Without z, or with ZeRO-3, it adds to no gradients."""
    fixed = {"z": z, "zero": zero, "pp": 1, "mbs": 4, "recompute": "none", "tp": 1}
    space = space_of(SearchProblem(MIXTURE, 4, 16, fixed))
    for row in range(len(space)):
        has_the_ops_of_its_relaxed_shape(space, row)


@few_and_many(15, 1500, DRAWN, space=EVERY, name=st.sampled_from(sorted(MACHINES)), data=st.data())
def test_relaxed_shapes_take_no_longer_than_a_row(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_row(space, name, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=200, deadline=None, phases=UNSHRUNK)
@given(
    gpt=st.one_of(models(), mixtures()),
    name=st.sampled_from(["megatron-core", "megatron-lm-2021", "fsdp", "torchtitan", "x-moe"]),
    machine=st.sampled_from(["dgx-a100", "dgx-h100", "frontier"]),
    data=st.data(),
)
def test_no_row_of_a_stack_is_ruled_out_too_soon(
    gpt: GPT, name: str, machine: str, data: st.DataObject
) -> None:
    stack = load_stack(name)
    habits = fastest_kernels(stack, gpt, {}, MACHINES[machine]).habits
    more: dict[str, Any] = {"splits_sequences": data.draw(st.booleans()), "habits": habits}
    try:
        found = spaces_of(SearchProblem(gpt, 8, 16, {}, stack=stack, **more))
    except (PlanCannotRunError, PlanError):
        reject()
    holds_for_one_row(data.draw(st.sampled_from(found)), machine, data)


def test_what_relaxed_shapes_do_not_have_leaves_them_out_of_a_search() -> None:
    """Casts of a recipe, copies of what is offloaded, chunks of a loss."""
    plain = replace(MIXTURE, experts=0, topk=0, expert_ffn=0, dense_layers=0)
    more = {"recipe": "fp8-tensorwise"}, {"offload": "optimizer"}, {"loss_chunks": 4}
    found = [is_relaxed(SearchProblem(plain, 4, 16, fixed)) for fixed in ({}, *more)]
    assert found == [True, False, False, False]


@pytest.mark.parametrize(("z", "batch"), [(1, 16), (2, 32)])
def test_rows_that_add_to_no_whole_gradients_stay_open(z: int, batch: int) -> None:
    """Without z one micro-batch adds to nothing, with ZeRO-2 sums over data stand in for additions,
    and compute is all that takes long."""
    fixed = {"z": z, "pp": 1, "recompute": "none", "mbs": 4, "overlap": (), "tp": 1}
    gpt = replace(MIXTURE, experts=0, topk=0, expert_ffn=0, dense_layers=0, sequence=4096)
    space = space_of(SearchProblem(gpt, 4, batch, fixed | {"y": 1}))
    goal, machinery = Objective("time", MACHINES["alps"], 4), machinery_of(space.problem, "alps")
    relaxed = relaxed_rows(space, machinery, goal)
    assert len(relaxed.layers.shapes) == 1
    for row, zero in enumerate(space.columns["zero"].tolist()):
        least = int(bounds_of(space, row, machinery, goal).min())
        open_, closed = (relaxed.low(np.array([0]), least + more) for more in (1, -least // 8))
        assert open_[row], zero
        assert not closed[row], zero


def test_updates_of_whole_states_bound_no_row_whose_ranks_share_them() -> None:
    """A large vocabulary and few tokens, so that much of a step is its update."""
    fixed: dict[str, Any] = {"y": 1, "pp": 1, "mbs": 1, "recompute": "none"}
    gpt = replace(MIXTURE, experts=0, topk=0, expert_ffn=0, dense_layers=0, layers=1)
    space = space_of(SearchProblem(replace(gpt, sequence=64, vocab=128256), 4, 4, fixed))
    machine = MACHINES["dgx-h100"]
    goal, machinery = Objective("time", machine, 4), machinery_of(space.problem, "dgx-h100")
    relaxed = relaxed_rows(space, machinery, goal)
    assert {*space.columns["zero"].tolist()} == {0, 1, 2, 3}
    for row in range(len(space)):
        shape = relaxed.layers.of_row[[row]]
        least = int(bounds_of(space, row, machinery, goal).min())
        assert relaxed.low(shape, least + 1)[relaxed.rows_of(shape) == row].all(), space.shape(row)


def test_tables_gathered_over_more_ranks_may_take_less_time() -> None:
    """On three times two ranks ZeRO-3 gathers a large table over whole nodes, others over z."""
    few: dict[str, Any] = {
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "sequence": 256,
        "vocab": 50257,
    }
    gpt = replace(MIXTURE, **few, experts=4, expert_ffn=128, shared_ffn=512)
    fixed = {"tp": 2, "y": 1, "z": 3, "pp": 1, "mbs": 1, "recompute": "none", "zero": 3}
    space = spaces_of(SearchProblem(gpt, 12, 24, fixed, splits_sequences=True))[0]
    goal, machinery = Objective("time", MACHINES["busy"], 12), machinery_of(space.problem, "busy")
    relaxed = relaxed_rows(space, machinery, goal)
    for row in range(len(space)):
        shape = relaxed.layers.of_row[[row]]
        least = int(bounds_of(space, row, machinery, goal).min())
        assert relaxed.low(shape, least + 1)[relaxed.rows_of(shape) == row].all(), space.shape(row)


def test_contexts_are_lowered_together_but_where_programs_have_their_steps() -> None:
    machine = MACHINES["dgx-h100"]
    stack, found = load_stack("torchtitan"), []
    steps = fastest_kernels(stack, MIXTURE, {}, machine).habits
    for kind, habits in (("ring", NO_HABITS), ("all_gather", NO_HABITS), ("all_gather", steps)):
        problem = SearchProblem(
            MIXTURE, 16, 16, {"context_kind": kind}, splits_sequences=True, habits=habits
        )
        space = space_of(problem)
        contexts = space.columns["cp"]
        parts = kinds(space, np.arange(len(space), dtype=np.int64), together=True)
        found.append(max(len(np.unique(contexts[rows])) for rows in parts))
    assert found == [1, 3, 1]


def ruled_out(space: Space, threshold: int) -> list[list[int]]:
    """The rows that are to be bounded, and those that are ruled out."""
    machinery = machinery_of(space.problem, "alps")
    goal = Objective("time", MACHINES["alps"], 16)
    left = UnboundedRows(space, machinery, goal, relaxes=True)
    found: list[list[int]] = [[], []]
    while left:
        for rows, every in zip(left.pop(threshold), found, strict=True):
            assert (np.diff(rows) > 0).all()
            every.extend(rows.tolist())
    return found


@pytest.mark.slow
def test_rows_are_bounded_or_ruled_out_and_most_are_ruled_out() -> None:
    space = spaces_of(
        SearchProblem(MIXTURE, 16, 16, {"y": 1, "z": 1, "recompute": "none"}, splits_sequences=True)
    )[0]
    goal, machinery = Objective("time", MACHINES["alps"], 16), machinery_of(space.problem, "alps")
    bounds = [
        int(bounds_of(space, row, machinery, goal).min()) for row in range(0, len(space), EACH)
    ]
    every, none = ruled_out(space, NEVER)
    assert (sorted(every), none) == (list(range(len(space))), [])
    left, gone = ruled_out(space, min(bounds) + 1)
    assert sorted(left + gone) == list(range(len(space)))
    assert EACH * bounds.index(min(bounds)) in left
    assert len(gone) > 0.9 * len(space)


def test_a_ring_of_many_ranks_is_ruled_out_by_its_exchanges_alone() -> None:
    fixed = {"y": 1, "context_kind": "ring"}
    space = spaces_of(SearchProblem(MIXTURE, 64, 64, fixed, splits_sequences=True))[0]
    goal, machinery = Objective("time", MACHINES["alps"], 64), machinery_of(space.problem, "alps")
    relaxed = relaxed_rows(space, machinery, goal)
    exchanges = relaxed.exchanges
    assert exchanges is not None
    low = set[int]()
    for rows in exchanges.parts:
        context = exchanges.shapes.columns["cp"][rows]
        low |= {*context[exchanges.low(rows, 2 * 10**9)[0]].tolist()}
    # Nodes have four devices; the rings of two and of four take half a millisecond and nine tenths.
    assert low == {1, 2, 4}


def test_a_higher_threshold_opens_what_a_lower_one_ruled_out() -> None:
    fixed = {"y": 1, "context_kind": "ring", "cp": 8}
    space = spaces_of(SearchProblem(MIXTURE, 64, 64, fixed, splits_sequences=True))[0]
    goal, machinery = Objective("time", MACHINES["alps"], 64), machinery_of(space.problem, "alps")
    relaxed = relaxed_rows(space, machinery, goal)
    shape = np.array([0])
    assert not relaxed.low(shape, 1).any()
    assert relaxed.low(shape, 10**18).all()


def test_shares_have_every_row_once_and_relaxed_shapes_whole() -> None:
    space = space_of(SearchProblem(MIXTURE, 16, 16, {"y": 1}))
    goal, machinery = Objective("time", MACHINES["alps"], 16), machinery_of(space.problem, "alps")
    names = list(space.columns)
    every = set(zip(*(space.columns[name].tolist() for name in names), strict=True))
    shapes = len(relaxed_rows(space, machinery, goal).layers.shapes)
    for count in (1, 3, 10**3):
        shares = [share_of(space, number, count) for number in range(count)]
        rows = [zip(*(own.columns[name].tolist() for name in names), strict=True) for own in shares]
        found = [row for own in rows for row in own]
        assert len(found) == len(every)
        assert {*found} == every
        some = (own for own in shares if len(own))
        assert sum(len(relaxed_rows(own, machinery, goal).layers.shapes) for own in some) == shapes
    empty = next(own for own in shares if not len(own))
    assert not UnboundedRows(empty, machinery, goal, relaxes=True)
    one, two = (len(share_of(space, number, 2)) for number in range(2))
    assert abs(one - two) < 0.2 * len(space)


def relaxing(monkeypatch: pytest.MonkeyPatch, problem: SearchProblem) -> list[int]:
    """Have relaxed shapes rule out rows of a small space too, behind a warm start; how many."""
    ruled, of_tally = list[int](), Tally.rule_out
    worth = max(map(len, spaces_of(problem)))

    def rule_out(tally: Tally, shapes: int, plans: int) -> None:
        ruled.append(shapes)
        of_tally(tally, shapes, plans)

    monkeypatch.setattr("simulator.search.workers.relaxes", lambda _: True)
    monkeypatch.setattr("simulator.search.warm_start.WORTH", worth)
    monkeypatch.setattr("simulator.search.progress.Tally.rule_out", rule_out)
    return ruled


def rules_rows_out_and_finds_the_best(
    monkeypatch: pytest.MonkeyPatch, objective: str, **more: int
) -> None:
    fixed = {"overlap": ("oar", "ors", "oag", "dp", "pp"), "order": "tp-dp-pp", "y": 1}
    fixed |= {"recompute": "none", "schedule": "1f1b", "vpp": 1, "mbs": 1}
    gpt = replace(MIXTURE, layers=3, experts=4)
    problem = SearchProblem(gpt, 4, 4, fixed | more, splits_sequences=True)
    ruled = relaxing(monkeypatch, problem)
    same_answer(problem, "alps", 1, objective)
    assert sum(ruled) > 0


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["time", "energy"])
def test_a_search_that_rules_rows_out_finds_what_trying_all_plans_finds(
    monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    rules_rows_out_and_finds_the_best(monkeypatch, objective, zero=1, z=1)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["time", "energy"])
def test_it_does_so_with_optimizers_gradients_and_weights_whole_and_in_parts(
    monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    rules_rows_out_and_finds_the_best(monkeypatch, objective)


@pytest.mark.slow
def test_shapes_that_a_machine_has_no_times_for_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"all_gather": (2,), "reduce_scatter": (2,)}
    problem, machine = SearchProblem(SMALL, 4, 8, FEW | {"tp": 1, "y": 1}), measured(**sizes)
    ruled = relaxing(monkeypatch, problem)
    *_, found = search(problem, machine)
    *_, every = exhaustive(problem, machine)
    assert 0 < found.unpredicted <= every.unpredicted
    assert_names(found.reason, "2")
    assert found.is_optimal
    assert [each.step_s for each in found.found] == [each.step_s for each in every.found]
    assert sum(ruled) > 0
