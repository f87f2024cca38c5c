"""Searches of models whose layers attend differently, some of them with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from simulator.search.bounds.batched_programs import sized
from simulator.search.bounds.layer_kinds import KINDS, base_of, name_of, names_of
from simulator.search.bounds.layouts import chunk_layers, layout_of
from simulator.search.bounds.peak_memory import alone_bytes, plan_bytes
from simulator.search.problem import SearchProblem
from simulator.search.space import Order, Space, space_of
from tests.examples import few_and_many
from tests.simulator.search.answers import same_answer
from tests.simulator.search.drawn import DRAWN, MACHINES, mixtures, models, spaces
from tests.simulator.search.test_bounds import holds_for_one_plan
from workload.gpt import GPT, find_model
from workload.models import moe, windows

OSS, V3 = find_model("gpt-oss-20b"), find_model("deepseek-v3")
TINY = GPT.of(
    name="tiny",
    layers=6,
    hidden=256,
    heads=4,
    ffn=1024,
    sequence=2048,
    vocab=1000,
    biases=False,
    activation="swiglu",
    positions="rope",
    window=256,
    global_every=3,
)
MIXED = TINY.changed(experts=4, topk=2, expert_ffn=256, dense_layers=1, global_every=2)
MIX = MIXED.changed(dense_layers=2, expert_every=2)
FEW: dict[str, Any] = {
    "y": 1,
    "z": 1,
    "mbs": 1,
    "overlap": ("dp",),
    "order": "tp-dp-pp",
    "recompute": "none",
    "zero": 1,
}


@st.composite
def in_windows(draw: st.DrawFn) -> GPT:
    """Models some of whose layers attend to all tokens, with and without experts."""
    layers = draw(st.sampled_from([(2, 4, 12), (3, 5, 7, 13, 27)]))
    gpt = draw(st.one_of(models(layers=layers), mixtures(layers=layers)))
    every = draw(st.sampled_from([2, 2, 3, 4, 6]))
    alike = gpt.latent.kv_rank or gpt.mtp.layers
    return gpt if alike else gpt.changed(window=64, global_every=every)


@few_and_many(
    2,
    200,
    DRAWN,
    slow={"space": spaces(gpts=in_windows())},
    space=spaces(devices=(4, 8, 12, 16), gpts=in_windows()),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_no_plan_of_layers_that_attend_differently_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


@pytest.mark.slow
def test_a_search_over_windows_finds_what_trying_all_plans_finds() -> None:
    """Six layers, of which two attend to all tokens, on four devices: one to four stages."""
    problem = SearchProblem(TINY, 4, 8, {**FEW, "tp": 1, "schedule": "1f1b"})
    assert set(space_of(problem).columns["pp"].tolist()) == {1, 2, 4}
    same_answer(problem, "perlmutter")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["dgx-h100", "frontier"])
@pytest.mark.parametrize("gpt", [TINY, MIXED, MIXED.changed(expert_every=2), MIX])
def test_a_search_over_windows_and_experts_finds_what_trying_all_plans_finds(
    gpt: GPT, name: str
) -> None:
    fixed = {**FEW, "dispatcher": "usual"} if gpt.moe.experts else FEW
    same_answer(SearchProblem(gpt, 8, 16, fixed), name)


def test_gradients_of_the_head_do_not_wait_beside_a_layer_that_others_lie_behind() -> None:
    """Two dense layers lie behind the last one with experts, though none in the model with one
    layer of each kind: with the head's gradients what bounds memory is above the peak."""
    gpt = MIXED.changed(window=0, global_every=0, layers=27, heads=2, sequence=256, expert_every=3)
    gpt = gpt.changed(tied=False, expert_ffn=128, shared_ffn=512, capacity=1.25)
    gpt = gpt.changed(q_rank=64, kv_rank=96, rope_width=32)
    shape = {"tp": 2, "y": 1, "z": 1, "cp": 2, "dp": 2, "pp": 1, "mbs": 12}
    split = {"ep": 2, "etp": 4, "zero": 3, "shard": 2, "sp": True}
    how = {
        "recompute": "full",
        "overlap": ("ors", "shared", "dp"),
        "order": "tp-dp-cp-pp",
    }
    problem = SearchProblem(gpt, 8, 24, {**shape, **split, **how})
    space = space_of(problem)
    some = next(sized(space, np.zeros(1, dtype=np.int64), overlap=("ors", "shared", "dp")))
    order = Order("1f1b", 1, ("ors", "shared", "dp"), "tp-dp-cp-pp")
    peak = plan_bytes(gpt, space.plan(0, order))
    assert 0.99 * peak < alone_bytes(some, gpt)[0] <= peak


DENSE, DENSE_WHOLE, EXPERTS, WHOLE = KINDS


@pytest.mark.parametrize(
    ("gpt", "names", "shape"),
    [
        (OSS, (EXPERTS, WHOLE), (0, 2)),
        (OSS.changed(window=0, global_every=0), ("layer",), (0, 0)),
        (V3, (DENSE, EXPERTS), (1, 0)),
        (TINY, (DENSE, DENSE_WHOLE), (0, 2)),
        (MIXED.changed(global_every=6), (DENSE, WHOLE, EXPERTS), (1, 2)),
        (MIXED, (DENSE, WHOLE, EXPERTS), (1, 2)),
        (
            MIXED.changed(dense_layers=2),
            (DENSE, DENSE_WHOLE, EXPERTS, WHOLE),
            (2, 2),
        ),
    ],
)
def test_the_base_has_a_layer_of_each_kind(
    gpt: GPT, names: tuple[str, ...], shape: tuple[int, int]
) -> None:
    """So many layers have no experts, and every so many-th attends to all tokens."""
    base = base_of(gpt)
    assert (base.moe.dense_layers, base.attention.global_every) == shape
    assert names_of(gpt) == names
    assert [name_of(base, layer) for layer in range(base.layers)] == list(names)


def test_a_mix_that_no_small_model_has_is_bounded_by_one_layer_of_every_kind() -> None:
    """Layers 0 to 5: dense in a window, dense over all, then by turns dense in a window and with
    experts over all. Models begin in a window, and those of three layers have no such turns."""
    assert names_of(MIX) == (DENSE, DENSE_WHOLE, EXPERTS, WHOLE)
    assert {name_of(MIX, layer) for layer in range(6)} == {*names_of(TINY), WHOLE}
    assert layout_of(MIX, 2, 1).kinds(0) == (2, 1, 0, 0)


@pytest.mark.parametrize("whole", [2, 3, 4])
@pytest.mark.parametrize(("dense", "every"), [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)])
def test_a_chunk_is_that_of_a_model_whose_layers_are_of_the_same_kinds(
    dense: int, every: int, whole: int
) -> None:
    """Whichever layers it has, and however many of its units stand for all."""
    gpt = MIXED.changed(layers=60, dense_layers=dense, expert_every=every, global_every=whole)
    base = base_of(gpt)
    for start, stop in ((0, 60), (0, 2), (1, 4), (3, 59), (17, 60)):
        chunk = chunk_layers(gpt, range(start, stop))
        few, more = chunk.shortened()
        assert len(few.bases) == stop - start - more * chunk.period
        own = [kind(gpt, layer) for layer in range(start, stop)]
        for part in (chunk, few):
            model = part.model(base)
            assert [kind(base, number) for number in part.bases] == own
            layers = range(part.skip, model.layers)
            assert [kind(model, layer) for layer in layers] == own
            own = [*own[: chunk.prefix], *own[chunk.prefix + more * chunk.period :]]


def kind(gpt: GPT, layer: int) -> tuple[bool, int]:
    """Whether a layer has experts, and its window."""
    return moe.has_experts(gpt, layer), windows.window_of(gpt, layer)


def test_eighteen_layers_in_a_window_and_over_all_tokens_are_nine_of_each_on_two_stages() -> None:
    """Of 24 layers the first four of five stages have one more than the last. The fullest between
    the ends have three over all tokens; the last of them stands furthest behind."""
    assert layout_of(replace(OSS, layers=36), 2, 1).kinds(1) == (9, 9)
    layout = layout_of(OSS, 5, 1)
    assert [layout.kinds(stage) for stage in range(5)] == [(3, 2), (2, 3), (3, 2), (2, 3), (2, 2)]
    assert layout.fullest == 3
