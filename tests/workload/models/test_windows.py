"""Sliding windows in models and programs: counted by hand, and refused where they cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.costs.attention import causal_flops, square_share, waves
from tests.messages import names
from topologies.machine_files import load_machine
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.models import windows
from workload.models.mtp import every_layer
from workload.op import Op
from workload.op_attributes import Attributes
from workload.plan_text import parse_plan
from workload.stages import like_stages

GEMMA = GPT.of(
    name="six",
    layers=6,
    hidden=32,
    heads=4,
    ffn=64,
    sequence=16,
    vocab=64,
    norm="rmsnorm",
    positions="rope",
    biases=False,
    window=5,
    global_every=3,
)
FORWARD = Op("a", "attention", (), (), flops=16, attributes={"sequence": 16, "window": 4})


def test_every_so_many_th_layer_sees_all_tokens_and_the_others_a_window() -> None:
    assert [windows.window_of(GEMMA, layer) for layer in range(6)] == [5, 5, 0, 5, 5, 0]
    assert windows.keys_of_layers(GEMMA) == 4 * 5 + 2 * 16
    assert windows.keys_of_layers(GEMMA.changed(window=16)) == 6 * 16
    assert windows.keys_of_layers(GEMMA.changed(global_every=0)) == 6 * 5
    oss = find_model("gpt-oss-20b")
    assert [windows.window_of(oss, layer) for layer in range(4)] == [128, 0, 128, 0]


@pytest.mark.parametrize("lengths", [(16,), (4, 4, 4, 4), (9, 4, 3)])
@pytest.mark.parametrize("depths", [0, 2])
def test_what_the_causal_mask_takes_from_queries_is_counted_pair_by_pair(
    lengths: tuple[int, ...], depths: int
) -> None:
    gpt = GEMMA.changed(mtp_layers=depths, documents="+".join(map(str, lengths)))
    taken, counted = 0, 0
    for layer in every_layer(gpt):
        for length in lengths:
            width = min(windows.window_of(gpt, layer) or length, length)
            seen = sum(min(query + 1, width) for query in range(length))
            counted += length * width
            taken += length * width - seen
    assert gpt.masked_flops(3) == 3 * 4 * 32 * 3 * taken
    assert 0 < 2 * taken < counted


def test_a_window_counts_as_many_keys_for_each_query() -> None:
    """Scores and contexts are 2 x 32 columns x 2 FLOPs for each key, three times with gradients."""
    saved = 4 * (16 - 5)  # keys of each query, in four layers
    whole = GEMMA.changed(window=0, global_every=0)
    assert whole.model_flops(2) - GEMMA.model_flops(2) == 3 * 2 * 16 * 4 * 32 * saved
    plan = parse_plan("mbs=2,batch=2,overlap=none,tp=2")
    program = lower(GEMMA, plan)
    assert program.model_flops == GEMMA.model_flops(2)
    cores = {op.part.layer: op for op in program.ops if op.kind == "attention"}
    assert cores[1].flops == 4 * 2 * 16 * 5 * 16
    assert cores[1].attributes["window"] == 5
    assert cores[2].flops == 4 * 2 * 16 * 16 * 16
    assert "window" not in cores[2].attributes


def test_packed_documents_attend_within_themselves() -> None:
    """Of 16 tokens in documents of 8 a query counts 8 keys in place of 16; of 4 fewer than its
    window of 5."""
    whole = GEMMA.changed(window=0, global_every=0)
    packed = whole.changed(document=8)
    assert whole.model_flops(2) - packed.model_flops(2) == 3 * 2 * 16 * 4 * 32 * (6 * 8)
    assert windows.keys_of_layers(GEMMA.changed(document=8)) == 4 * 5 + 2 * 8
    assert windows.keys_of_layers(GEMMA.changed(document=4)) == 6 * 4
    for text in ("tp=2", "cp=2,context_kind=all_gather", "cp=2,context_kind=ulysses"):
        program = lower(packed, parse_plan(f"mbs=2,batch=2,overlap=none,{text}"))
        assert program.model_flops == packed.model_flops(2)
        cores = [op for op in program.ops if op.kind == "attention"]
        assert {op.attributes["sequence"] for op in cores} == {8}
        assert {causal_flops(op) for op in cores} == {cores[0].flops / 2}


@pytest.mark.parametrize("document", [5, 32])
def test_documents_that_do_not_fill_a_sequence_are_refused(document: int) -> None:
    with pytest.raises(ModelError, check=names(f"document={document}", "sequence=16")):
        GEMMA.changed(document=document)
    with pytest.raises(ModelError, check=names("document=8", "dropout")):
        GEMMA.changed(document=8, dropout=0.1)


def test_a_ring_leaves_out_steps_that_no_window_or_document_reaches() -> None:
    """Chunks of 4 tokens: with a window of 5 queries see the chunk before theirs, at the first and
    the last step of four; documents of 4 stay with their ranks. All FLOPs are there."""
    long = replace(GEMMA, sequence=32)
    for gpt, steps in (
        (long.changed(global_every=0), [0, 1, 3]),
        (long.changed(global_every=0, window=6), [0, 1, 2, 3]),
        (long.changed(window=0, global_every=0, document=4), [0]),
        (long.changed(window=0, global_every=0, document=8), [0, 1, 3]),
    ):
        program = lower(gpt, parse_plan("cp=4,batch=1,overlap=none"))
        cores = [op for op in program.ops if op.kind == "attention" and op.part.layer == 0]
        assert [op.attributes["step"] for op in cores] == steps
        assert program.model_flops == gpt.model_flops(1)
        shifts = [op for op in program.ops if op.kind == "ring_shift" and op.part.layer == 0]
        assert len(shifts) == 3 * 4 - 2


def test_single_steps_refuse_documents() -> None:
    packed = GEMMA.changed(window=0, global_every=0, document=8)
    with pytest.raises(PlanCannotRunError, check=names("attention=unfused", "document=8")):
        lower(packed, parse_plan("attention=unfused"))


def test_stages_with_layers_of_two_kinds_are_told_apart() -> None:
    assert like_stages(GEMMA, parse_plan("pp=6,batch=6")) == [0, 1, 2, 1, 1, 5]


def test_the_work_of_a_window_goes_over_into_that_of_the_whole_square() -> None:
    """Of 16 queries the first 3 see 1, 2 and 3 keys in place of 4: 58 of 64, counted as 56 + 2."""
    assert square_share(0, 16, causal=True, keys=4) == 56 / 64
    assert square_share(0, 16, causal=True, keys=16) == 0.5
    assert square_share(4, 16, causal=True, keys=16) == square_share(4, 16, causal=True) == 0.625
    assert causal_flops(FORWARD) == 14
    shape = load_machine("dgx-a100").device.attention.shape
    assert shape is not None
    almost = waves(shape, 8, 4096, True, 4095)
    assert almost == pytest.approx(waves(shape, 8, 4096, True), rel=1e-3)


def test_attention_in_a_window_of_a_sixteenth_takes_a_fraction_of_the_time() -> None:
    """16 times fewer keys, but neither half of the square nor blocks are saved."""
    costs = AnalyticCosts(load_machine("dgx-h100"))
    about: Attributes = {"width": 128, "sequence": 8192, "heads": 32}
    whole = Op("a", "attention", (), (), flops=4 * 8192 * 8192 * 4096, attributes=about)
    part = replace(whole, flops=whole.flops // 16, attributes={**about, "window": 512})
    assert 1 / 10 < costs.seconds(part) / costs.seconds(whole) < 1 / 4


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ("attention=unfused", ("attention=unfused",)),
    ],
)
def test_plans_that_compute_whole_squares_are_refused(plan: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        lower(GEMMA, parse_plan(f"batch=4,mbs=1,{plan}"))
    lower(GEMMA.changed(window=16), parse_plan(f"batch=4,mbs=1,{plan}"))


def test_sinks_are_a_number_for_each_head_and_keep_the_core_fused() -> None:
    sunk = GEMMA.changed(window=0, global_every=0, sinks=True)
    assert sunk.parameters - sunk.changed(sinks=False).parameters == 6 * 4
    program = lower(sunk, parse_plan("mbs=2,batch=2,overlap=none,tp=2"))
    assert program.buffers["l0.sinks.w"].shape == (2,)
    with pytest.raises(PlanCannotRunError, check=names("sinks=true")):
        lower(sunk, parse_plan("batch=4,mbs=1,attention=unfused"))


def test_biases_of_experts_are_one_for_each_and_cut_as_their_weights_are() -> None:
    gpt = GEMMA.changed(biases=True, ffn=64, experts=8, topk=2, expert_ffn=48)
    each, attention = 48 + 32, 3 * 32 + 32  # gelu: one band
    plain = replace(gpt, biases=False)
    assert gpt.parameters - plain.parameters == 6 * (8 * each + 8 + attention)
    more = gpt.active_parameters - plain.active_parameters
    assert more == 6 * (2 * each + 8 + attention)
    program = lower(gpt, parse_plan("mbs=1,batch=4,tp=2,dp=4,ep=4,overlap=none"))
    assert program.buffers["l0.experts.up.b"].shape == (2 * 24,)
    assert program.buffers["l0.experts.down.b"].shape == (2 * 32,)
    assert program.buffers["l0.router.b"].shape == (8,)


def test_fields_that_say_nothing_are_refused() -> None:
    with pytest.raises(ModelError, check=names("global_every=3")):
        GEMMA.changed(window=0)
