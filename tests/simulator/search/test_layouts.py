"""Layers of several kinds in the chunks of a pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.search.baselines import every_plan
from simulator.search.bounds.layer_kinds import base_of, kind_of
from simulator.search.bounds.layouts import (
    AHEAD,
    OWN,
    REST,
    ModelEnds,
    chunk_layers,
    interleaves,
    layout_of,
    layouts_of,
    plain_layers,
)
from simulator.search.problem import SearchProblem, unproved
from simulator.search.space import space_of
from tests.simulator.search.answers import same_answer
from tests.simulator.search.drawn import MACHINES
from tests.simulator.search.test_branch_and_bound import SMALL
from workload.gpt import GPT, find_model
from workload.models import moe
from workload.op import layer_part

V3 = find_model("deepseek-v3")
TINY = replace(find_model("tiny-deepseek-2m"), layers=5, sequence=512)


def test_sixty_one_layers_on_sixteen_stages_leave_the_ends_of_the_model_a_layer_less() -> None:
    """Three stages have three layers, thirteen have four; the first three have no experts."""
    layout = layout_of(V3, 16, 1)
    assert [len(chunk.bases) for chunk in layout.chunks] == [3, *[4] * 13, 3, 3]
    assert [layout.kinds(stage) for stage in (0, 1, 13, 15)] == [(3, 0), (0, 4), (0, 4), (0, 3)]
    assert layout.fullest == 13
    layouts = layouts_of(V3, [(16, 1)])
    assert layouts is not None
    counts = {which: layouts.counts(ModelEnds(), which)[:, 0].tolist() for which in (OWN, AHEAD)}
    assert counts == {OWN: [0, 4], AHEAD: [0, 48]}


def test_of_two_chunks_a_stage_the_last_one_has_the_head() -> None:
    layout = layout_of(V3, 2, 2)
    assert [len(chunk.bases) for chunk in layout.chunks] == [15, 16, 15, 15]
    ends = ModelEnds(last=True)
    assert layout.of(ends, OWN) == {layout.chunks[3]: 1}
    assert layout.of(ends, REST) == {layout.chunks[1]: 1}


def test_interleaves_with_the_same_largest_chunk_count_once() -> None:
    """On 16 stages one chunk has up to 4 layers, two have up to 2, and so would three."""
    assert interleaves(V3, 16) == [1, 2]
    assert interleaves(V3, 8) == [1, 2, 3, 4]


def test_of_many_units_eight_stand_for_all() -> None:
    """Every second layer has experts, from the fourth on: a chunk of layers 3 to 42 has twenty
    units of two layers; the model that it is lowered from has layers with experts where it has."""
    gpt = V3.changed(layers=60, dense_layers=2, expert_every=2)
    whole = chunk_layers(gpt, range(3, 43))
    few, more = whole.shortened()
    assert (whole.skip, whole.units, few.units, more) == (1, 20, 8, 12)
    for chunk in (whole, few):
        model = chunk.model(base_of(gpt))
        bases = [int(moe.has_experts(model, layer)) for layer in range(model.layers)]
        assert tuple(bases[chunk.skip :]) == chunk.bases
    assert whole.bases == tuple(int(moe.has_experts(gpt, layer)) for layer in range(3, 43))
    assert few.unit_of(1) == (0, 0)
    assert few.unit_of(0) is None
    assert plain_layers(3).shortened() == (plain_layers(3), 0)


def tiny_problem() -> SearchProblem:
    fixed = {"z": 1, "mbs": 1, "overlap": ("dp",), "order": "tp-dp-pp", "y": 1}
    more = {"recompute": "none", "zero": 1, "dispatcher": "usual"}
    return SearchProblem(TINY, 8, 16, fixed | more)


def test_the_space_of_a_tiny_deepseek_has_uneven_stages_and_experts_over_x() -> None:
    space = space_of(tiny_problem())
    assert {1, 2, 4} <= set(space.columns["pp"].tolist())
    assert {0, 1} <= set(space.columns["etp"].tolist())
    assert 50 < space.plans < 200


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["perlmutter", "frontier"])
def test_a_search_over_dense_and_expert_layers_finds_what_trying_all_plans_finds(name: str) -> None:
    """A tiny DeepSeek on eight devices: stages of two and three layers, experts over data and x."""
    same_answer(tiny_problem(), name)


def test_stages_of_layers_of_one_kind_divide() -> None:
    every = TINY.changed(dense_layers=0)
    assert set(space_of(SearchProblem(every, 8, 16)).columns["pp"].tolist()) == {1}


def test_a_plan_names_the_layers_of_its_chunks_where_they_do_not_divide() -> None:
    problem = SearchProblem(TINY, 2, 4, {"pp": 2, "vpp": 1, "schedule": "1f1b"})
    assert {plan.pipeline.stage_layers for plan in every_plan(space_of(problem))} == {(3, 2)}


FURTHER = TINY.changed(mtp_layers=2)
FURTHER_SMALL = SMALL.changed(positions="rope", mtp_layers=2)


def test_modules_for_further_tokens_are_of_the_head() -> None:
    base = base_of(FURTHER)
    kinds = [kind_of(layer_part(number), base) for number in range(4)]
    assert kinds == ["dense", "experts", "head", "head"]
    machine, windows = MACHINES["perlmutter"], FURTHER_SMALL.changed(window=64, global_every=2)
    assert "global_every=2" in unproved(SearchProblem(windows, 4, 8), machine)
    every_second = SearchProblem(FURTHER.changed(expert_every=2), 8, 16)
    assert "expert_every=2" in unproved(every_second, machine)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("gpt", [FURTHER, FURTHER_SMALL])
@pytest.mark.parametrize("name", ["perlmutter", "frontier", "kestrel"])
def test_a_search_with_further_tokens_finds_what_trying_all_plans_finds(
    gpt: GPT, name: str
) -> None:
    few = {key: value for key, value in tiny_problem().fixed.items() if key != "dispatcher"}
    same_answer(SearchProblem(gpt, 4, 16, few), name)
    if not gpt.latent.kv_rank:
        over_y = {**few, "y": 2, "vpp": 1}
        same_answer(SearchProblem(gpt, 4, 16, over_y), name)
