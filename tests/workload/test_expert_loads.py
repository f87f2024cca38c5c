"""Histograms of experts: rows of ranks counted by hand, and files refused where wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names, names
from tests.workload.test_experts import ROWS, TWO, of_layer
from workload.errors import ModelError
from workload.expert_loads.capacity import dropped, mean_dropped
from workload.expert_loads.histogram import (
    Histogram,
    RoutedGPT,
    balanced,
    dispatched_rows,
    expert_layers,
    routed,
)
from workload.expert_loads.histogram_file import as_document, histogram_of, read_routed
from workload.expert_loads.rank_sizes import fullest, least_sizes, sizes_of_ranks
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.program import Program
from workload.stages import like_stages

FOUR = TWO.changed(experts=4)
UNEVEN = (4, 2, 1, 1)
SENT = ROWS * FOUR.moe.topk  # rows that a rank dispatches


def with_counts(*layers: tuple[int, ...], gpt: GPT = FOUR) -> RoutedGPT:
    return routed(gpt, Histogram(layers))


def program_of(gpt: GPT, rest: str) -> Program:
    return lower(gpt, parse_plan(f"mbs=2,overlap=none,{rest}"))


def test_the_busiest_of_two_ranks_has_six_of_eight_rows() -> None:
    """Two ranks send 64 rows each, of 128 the first has 6/8: half as many again as the mean."""
    gpt = with_counts(UNEVEN, UNEVEN)
    uneven, even = (program_of(each, "dp=2,ep=2") for each in (gpt, FOUR))
    assert dispatched_rows(gpt, uneven.plan) == SENT == 64
    for label in ("dispatch.exchange", "combine.exchange", "combine.grad.exchange"):
        assert of_layer(uneven, label).nbytes * 8 == of_layer(even, label).nbytes * 12
    for label in ("experts.up.matmul", "experts.down.grad.weight"):
        assert of_layer(uneven, label).flops * 8 == of_layer(even, label).flops * 12
    there, back = (of_layer(uneven, f"{way}.exchange") for way in ("dispatch", "combine"))
    assert uneven.buffers[there.reads[0]].shape == (64, 32)
    assert uneven.buffers[there.writes[0]].shape == (96, 32)
    assert uneven.buffers[back.reads[0]].shape == (96, 32)
    assert uneven.buffers[back.writes[0]].shape == (64, 32)


def test_the_busiest_rank_takes_its_rows_of_as_many_gathered_tokens_as_ever() -> None:
    """Two ranks have 32 tokens each, so 64 are gathered; of their 128 rows the first takes 6/8, 96.
    Sums for 64 tokens are scattered back."""
    text = "dp=2,ep=2,dispatcher=all_gather"
    uneven, even = (program_of(each, text) for each in (with_counts(UNEVEN, UNEVEN), FOUR))
    for program, rows in ((uneven, 96), (even, 64)):
        shapes = {name.removeprefix("m0.l1."): b.shape for name, b in program.buffers.items()}
        assert shapes["dispatch.tokens.o"] == (64, 32)
        assert shapes["dispatch.take_rows"] == (rows, 32)
        assert shapes["experts.down.o"] == shapes["combine.grad.take_rows"] == (rows, 32)
        assert shapes["combine.sum_rows"] == (64, 32)
        assert of_layer(program, "combine.scatter").nbytes == 64 * 32 * 2
        assert of_layer(program, "experts.up.matmul").flops == 2 * rows * 32 * 2 * 48


def test_copies_of_a_recipe_are_as_large_as_the_rows_of_each_rank() -> None:
    """Ranks busy in turns have 96 and 32 rows; of mxfp8 a copy has 32 values of a row a scale, and
    room for a last block of 32 rows of each of two experts."""
    gpt = with_counts(UNEVEN, (1, 1, 2, 4))
    program = program_of(gpt, "dp=2,ep=2,recipe=mxfp8")
    name = "m0.l1.dispatch.sort.sort_rows.mxfp8.columns"
    place = list(program.buffers).index(name)
    sizes = [own[place] for own in sizes_of_ranks(program)]
    assert sorted(sizes) == [(32 // 32 + 2) * 32 * 32, (96 // 32 + 2) * 32 * 32]


def test_some_rank_has_as_much_in_use_as_the_least_sizes_say() -> None:
    """Ranks busy in turns have 96 and 32 rows in a layer, 64 in the mean: of mxfp8 one whole block
    of 32 and room for those of two experts, which are two more. Where one rank has most in both
    layers sizes are its own."""
    gpt = with_counts(UNEVEN, (1, 1, 2, 4))
    program = program_of(gpt, "dp=2,ep=2,recipe=mxfp8")
    own = dict(zip(program.buffers, least_sizes(program), strict=True))
    assert program.buffers["m0.l1.dispatch.arrived"].shape == (96, 32)
    assert own["m0.l1.dispatch.arrived"] == 64 * 32 * 2
    assert own["m0.l1.dispatch.sort.sort_rows.mxfp8.columns"] == (64 // 32 + 2 - 1) * 32 * 32
    peaks = [_peak(program, sizes) for sizes in sizes_of_ranks(program)]
    assert _peak(program, least_sizes(program)) < max(peaks) < _peak(program, program.nbytes)
    alike = program_of(with_counts(UNEVEN, UNEVEN), "dp=2,ep=2")
    assert list(least_sizes(alike)) == list(alike.nbytes)


def _peak(program: Program, sizes: Sequence[int]) -> int:
    known = replace(program, like=program.outline, known_nbytes=sizes)
    return known.peak.total_bytes


def test_what_goes_to_no_rank_of_its_own_is_as_large_as_ever() -> None:
    """Without `expert` every rank has all experts; with a capacity each has its places."""
    gpt = with_counts(UNEVEN, UNEVEN)
    for text, own in (("dp=2", FOUR), ("dp=2,ep=2", FOUR.changed(capacity=1.0))):
        uneven = program_of(with_counts(UNEVEN, UNEVEN, gpt=own), text)
        even = program_of(own, text)
        assert [op.nbytes for op in uneven.ops] == [op.nbytes for op in even.ops]
        assert [op.flops for op in uneven.ops] == [op.flops for op in even.ops]
    assert balanced(gpt) == FOUR
    assert balanced(FOUR) == FOUR


@pytest.mark.parametrize("rest", ["dp=4,ep=4", "tp=2,dp=2,ep=4,etp=1,sp=true"])
def test_equal_counts_are_the_program_without_them(rest: str) -> None:
    even = program_of(FOUR, rest)
    same = program_of(with_counts((3, 3, 3, 3), (5, 5, 5, 5)), rest)
    assert same.ops == even.ops
    assert same.buffers == even.buffers


def test_a_capacity_of_one_drops_what_is_above_the_even_share() -> None:
    """Of 8 choices the first expert has 4, and places for 2: a quarter is dropped; twice the places
    hold them all."""
    gpt = with_counts(UNEVEN, (1, 1, 1, 1), gpt=FOUR.changed(capacity=1.0))
    assert dropped(gpt, 0, tokens=32) == 0.25
    assert dropped(gpt, 1, tokens=32) == 0.0
    assert dropped(gpt.changed(capacity=1.5), 0, tokens=32) == 0.125
    assert dropped(gpt.changed(capacity=2.0), 0, tokens=32) == 0.0
    assert dropped(gpt.changed(capacity=0.0), 0, tokens=32) == 0.0


@pytest.mark.parametrize(("capacity", "lost"), [(0.0, 0.0), (0.75, 0.25), (1.0, 0.0), (4.0, 0.0)])
def test_a_capacity_below_one_drops_of_even_choices_too(capacity: float, lost: float) -> None:
    gpt, plan = FOUR.changed(capacity=capacity), parse_plan("dp=2,ep=2,batch=2")
    assert dropped(gpt, 0, tokens=32) == lost
    assert mean_dropped(gpt, plan) == lost


def test_memory_is_that_of_one_rank_and_not_of_the_busiest_of_each_layer() -> None:
    """In layers that keep as much for each row, ranks that are busy in turns have what even ones
    have, but for the rows of the layer at hand."""
    text = "dp=2,ep=2"
    even, other = program_of(FOUR, text), (1, 1, 2, 4)
    same = program_of(with_counts(UNEVEN, UNEVEN), text)
    turns = program_of(with_counts(UNEVEN, other), text)
    assert sizes_of_ranks(even) == [even.nbytes]
    assert sizes_of_ranks(same) == [same.nbytes]
    names = [op.writes[0] for op in turns.ops if op.label == "dispatch.exchange"]
    order = {name: at for at, name in enumerate(turns.buffers)}
    both = [[own[order[name]] // (32 * 2) for name in names] for own in sizes_of_ranks(turns)]
    assert sorted(both) == [[32, 96], [96, 32]]
    peaks = [replace(turns, known_nbytes=own).peak.total_bytes for own in sizes_of_ranks(turns)]
    assert even.peak.total_bytes < max(peaks) < turns.peak.total_bytes
    assert turns.peak.total_bytes == same.peak.total_bytes


def test_the_fullest_rank_need_not_have_most_rows_in_all() -> None:
    """Where layers run again one at a time, a rank with 5 of 8 rows of one layer and none of the
    other is fuller than one with 3 of 8 in both."""
    gpt = with_counts((3, 5, 0, 0), (3, 0, 3, 2))
    program = program_of(gpt, "dp=4,ep=4,recompute=full")
    both, one = (_peak(program, sizes) for sizes in sizes_of_ranks(program))
    assert both < one == fullest(program).peak.total_bytes


def test_stages_are_alike_where_their_experts_are_chosen_as_often() -> None:
    plan = parse_plan("dp=2,ep=2,pp=4,batch=8")
    four = replace(FOUR, layers=8)
    assert like_stages(four, plan) == [0, 1, 1, 3]
    assert like_stages(with_counts(*[UNEVEN] * 8, gpt=four), plan) == [0, 1, 1, 3]
    layers = [UNEVEN] * 4 + [(1, 2, 4, 1)] + [UNEVEN] * 3
    assert like_stages(with_counts(*layers, gpt=four), plan) == [0, 1, 2, 3]


def test_a_file_has_a_list_for_all_layers_or_one_for_each(tmp_path: Path) -> None:
    gpt = FOUR.changed(layers=3, dense_layers=1)
    one, each = tmp_path / "one.toml", tmp_path / "each.json"
    one.write_text('source = "by hand"\ntokens = [4, 2, 1, 1]\n', encoding="utf-8")
    assert read_routed(gpt, one).histogram == Histogram(((), UNEVEN, UNEVEN))
    document = as_document({2: (1, 1, 1, 1), 1: UNEVEN}, "by hand")
    assert list(document["layers"]) == ["1", "2"]
    each.write_text(json.dumps(document), encoding="utf-8")
    assert read_routed(gpt, each).histogram == Histogram(((), UNEVEN, (1, 1, 1, 1)))
    more = gpt.changed(mtp_layers=1)
    assert expert_layers(more) == [1, 2, 3]
    assert histogram_of({"tokens": [*UNEVEN]}, more, "it").layers[3] == UNEVEN


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([1, 2], ("it", "tokens", "layers")),
        ({}, ("it", "tokens", "layers")),
        ({"tokens": [1], "layers": {}}, ("it", "tokens", "layers")),
        ({"tokens": [1, 1, 1, 1], "experts": 4}, ("experts", "tokens", "layers", "source")),
        ({"tokens": 4}, ("tokens", "two", "4")),
        ({"tokens": [1, 1]}, ("tokens", "two", "2", "4")),
        ({"tokens": [1, -1, 1, 1]}, ("tokens", "1", "-1")),
        ({"tokens": [1, 0.5, 1, 1]}, ("1", "0.5")),
        ({"tokens": [1, True, 1, 1]}, ("1", "True")),
        ({"tokens": [1, 2**60, 1, 1]}, ("1", str(2**60))),
        ({"tokens": [0, 0, 0, 0]}, ("it", "tokens")),
        ({"tokens": [5, 1, 1, 1]}, ("0", "5", "8", "2")),
        ({"layers": [1]}, ("it", "layers")),
        ({"layers": {"1": [1, 1, 1, 1]}}, ("it", "two", "2")),
        ({"layers": {"0": [1, 1, 1, 1]}}, ("two", "0", "1", "2")),
        ({"layers": {"1": [1, 1], "2": [1]}}, ("two", "1", "2", "4")),
    ],
)
def test_what_is_no_histogram_of_the_model_is_refused(
    document: Any, named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError) as error:
        histogram_of(document, FOUR.changed(layers=3, dense_layers=1), "it")
    assert_names(str(error.value), *named)


def test_a_model_without_experts_has_no_histogram() -> None:
    dense = FOUR.changed(experts=0, topk=0, expert_ffn=0)
    with pytest.raises(ModelError, check=names("experts", "two")):
        histogram_of({"tokens": [1]}, dense, "it")


@pytest.mark.parametrize(
    "plan",
    [
        "dp=4,ep=4",
        "tp=2,dp=2,ep=2",
        "tp=2,dp=2,ep=4,etp=1,sp=true",
        "tp=4,ep=2,etp=2,sp=true",
        "dp=4,ep=2,etp=2",
        "tp=2,cp=2,dp=2,ep=2,etp=4,sp=true",
    ],
)
def test_a_rank_dispatches_the_rows_that_the_program_sends(plan: str) -> None:
    program = lower(FOUR, parse_plan(f"{plan},mbs=2,batch=8"))
    sent = of_layer(program, "dispatch.exchange").nbytes // (FOUR.hidden * 2)
    assert dispatched_rows(FOUR, program.plan) == sent
