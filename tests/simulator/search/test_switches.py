"""Switches of overlap that a search leaves as they are, since nothing of a shape moves by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.search.orders import matters, overlaps
from simulator.search.problem import SearchProblem
from simulator.search.space import Order, Space, space_of
from tests.simulator.search.drawn import mixtures, models, spaces
from workload.gpt import GPT
from workload.grid import USUAL
from workload.lowering import lower
from workload.op import Op
from workload.overlaps import OVERLAPS
from workload.plan import Plan

LATENT = GPT.of(
    name="latent",
    layers=2,
    hidden=128,
    heads=4,
    ffn=512,
    sequence=512,
    vocab=1000,
    kv_rank=32,
    rope_width=32,
    norm="rmsnorm",
    positions="rope",
    biases=False,
)
FURTHER = LATENT.changed(kv_rank=0, rope_width=0, mtp_layers=1)


def ops_of(gpt: GPT, plan: Plan) -> list[list[Op]]:
    return [list(lower(gpt, plan, stage).ops) for stage in range(plan.pp)]


def moves_nothing_else(space: Space, at: int) -> None:
    """All switches that are said not to matter leave the program as it is."""
    known = matters(space.problem, {key: each[[at]] for key, each in space.columns.items()})
    plan = space.plan(at, Order("1f1b", 1, OVERLAPS, USUAL))
    gpt = space.problem.gpt
    program = ops_of(gpt, plan)
    for switch in OVERLAPS:
        if not bool(np.asarray(known[switch]).ravel()[0]):
            without = tuple(each for each in OVERLAPS if each != switch)
            assert ops_of(gpt, plan.changed(overlap=without)) == program, (switch, str(plan))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_in_three_hundred_shapes_what_is_not_searched_moves_nothing(data: st.DataObject) -> None:
    gpts = models(layers=(2,)) | mixtures(layers=(2, 3))
    space = data.draw(spaces(devices=(2, 4, 8, 16), gpts=gpts))
    at = data.draw(st.integers(0, len(space) - 1))
    moves_nothing_else(space, at)


@pytest.mark.parametrize("gpt", [LATENT, FURTHER])
def test_sums_over_rows_of_x_may_be_done_apart_on_one_rank_of_data(gpt: GPT) -> None:
    """With sequence parallelism ranks of x have other rows of what is not split over them."""
    fixed = {"tp": 2, "zero": 0, "pp": 1, "mbs": 1, "recompute": "none", "order": USUAL}
    space = space_of(SearchProblem(gpt, 2, 4, fixed))
    for at in range(len(space)):
        moves_nothing_else(space, at)
        searched = overlaps(space.problem, space.shape(at))
        is_apart = any("dp" not in overlap for overlap in searched)
        assert is_apart == space.shape(at)["sp"]


def test_shards_over_context_alone_are_gathered_beside_compute_or_not() -> None:
    gpt = LATENT.changed(kv_rank=0, rope_width=0)
    fixed = {"cp": 2, "dp": 1, "zero": 3, "mbs": 1, "order": USUAL}
    problem = SearchProblem(gpt, 2, 4, fixed | {"recompute": "none"})
    space = space_of(problem)
    searched = overlaps(problem, space.shape(0))
    assert {("ors" in overlap, "oag" in overlap) for overlap in searched} == {
        *((True, True), (True, False), (False, True), (False, False))
    }
    moves_nothing_else(space, 0)


def test_scores_move_beside_experts_of_models_without_a_shared_mlp() -> None:
    gpt = LATENT.changed(kv_rank=0, rope_width=0, experts=4, topk=2, expert_ffn=128)
    fixed = {"dp": 4, "ep": 4, "zero": 0, "mbs": 1, "order": USUAL}
    space = space_of(SearchProblem(gpt, 4, 8, fixed | {"recompute": "none"}))
    searched = overlaps(space.problem, space.shape(0))
    assert any("shared" not in overlap for overlap in searched)
    moves_nothing_else(space, 0)
