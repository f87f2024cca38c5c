"""Documents of several lengths: counted by hand, against masks, refused where they cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs.analytic import AnalyticCosts
from simulator.costs.attention import causal_flops, packed_blocks, packed_share, waves
from simulator.predict import predict
from tests.messages import names
from topologies.machine_files import load_machine
from workload.descriptions.fields import field_value
from workload.descriptions.from_table import read_model, with_fields
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.models import documents, windows
from workload.op import BUSIEST, Op
from workload.op_attributes import Attributes
from workload.plan_text import parse_plan

LENGTHS = GPT.of(
    name="packed",
    layers=2,
    hidden=32,
    heads=4,
    ffn=64,
    sequence=16,
    vocab=64,
    norm="rmsnorm",
    positions="rope",
    biases=False,
    documents="8+2x4",
)
KINDS = ("ring", "all_gather", "ulysses")


def test_attention_counts_the_squares_of_documents() -> None:
    """8 x 8 and twice 4 x 4 pairs are 96 of 256; of both products of 32 columns, 2 FLOPs each."""
    whole = LENGTHS.changed(documents="")
    assert whole.model_flops(3) - LENGTHS.model_flops(3) == 3 * 3 * 2 * 4 * 32 * (256 - 96)
    assert windows.keys_of_layers(LENGTHS) == 2 * 6
    for text in ("tp=2", "cp=2", *(f"cp=2,context_kind={kind}" for kind in KINDS)):
        program = lower(LENGTHS, parse_plan(f"mbs=3,batch=3,overlap=none,{text}"))
        assert program.model_flops == LENGTHS.model_flops(3)


def test_a_window_counts_no_more_keys_than_a_document_has() -> None:
    """Of a window of 5 tokens documents of 8 count 8 x 5 pairs, those of 4 all of theirs."""
    narrow = LENGTHS.changed(window=5)
    assert windows.keys_of_layers(narrow) == 2 * (8 * 5 + 2 * 16) / 16
    assert not windows.has_windows(LENGTHS.changed(window=8))
    program = lower(narrow, parse_plan("batch=1,overlap=none"))
    assert program.model_flops == narrow.model_flops(1)


@pytest.mark.parametrize(("text", "each"), [("4x4", 4), ("2x4+4+4", 4), ("8+8", 8), ("16", 16)])
def test_documents_of_one_length_are_what_document_says(text: str, each: int) -> None:
    """Programs and predictions are the same, whichever of both fields says it."""
    one = LENGTHS.changed(documents="", document=each)
    packed, machine = LENGTHS.changed(documents=text), load_machine("dgx-h100")
    for plan in map(parse_plan, ("tp=2,batch=2", *(f"cp=2,context_kind={k}" for k in KINDS))):
        assert lower(packed, plan).ops == lower(one, plan).ops
        assert packed.model_flops(1) == one.model_flops(1)
        assert predict(packed, plan, machine).step_s == predict(one, plan, machine).step_s


def test_the_work_of_ranks_is_that_of_their_chunks() -> None:
    """Two ranks with chunks of 2 tokens of 6 + 2: the first has the first two queries, which see 3
    keys, and the last document's two; the other one has those between, with 3 + 4 + 5 + 6."""
    assert documents.of_ranks("6+2", 0, 2) == [6, 18]
    assert documents.in_ring("6+2", 0, 2) == [[6, 10], [0, 8]]
    assert documents.busiest([6, 18]) == 1.5
    packed = LENGTHS.changed(sequence=8, documents="6+2")
    cores = {}
    for kind in KINDS:
        text = f"cp=2,context_kind={kind},batch=1,overlap=none"
        ops = lower(packed, parse_plan(text)).ops
        cores[kind] = [op.attributes.get(BUSIEST) for op in ops if op.kind == "attention"]
    assert cores == {"ring": [1.25, 2.0] * 2, "all_gather": [1.5] * 2, "ulysses": [None] * 2}


def test_keys_in_a_ring_come_from_the_rank_before() -> None:
    """Three ranks have tokens 0 and 5, 1 and 4, 2 and 3 of documents of 4 and 2 tokens. At step 1
    they have the keys of 2 and 3, of which 0 and 5 see none, of 0 and 5, of which 1 sees one, and
    of 1 and 4, of which 2 and 3 see one each."""
    assert documents.in_ring("4+2", 0, 3) == [[2, 2, 3], [0, 1, 2], [1, 0, 2]]


def test_a_ring_leaves_out_steps_of_which_no_query_sees_a_key() -> None:
    """Chunks of 2 tokens: documents of 1, 2 and 5 end within them; only that of 5 and that of 2
    have tokens of several ranks."""
    packed = LENGTHS.changed(documents="1+2+5+8")
    program = lower(packed, parse_plan("cp=4,batch=1,overlap=none"))
    cores = [op for op in program.ops if op.kind == "attention" and op.part.layer == 0]
    pairs = [sum(step) for step in documents.in_ring("1+2+5+8", 0, 4)]
    assert [op.attributes["step"] for op in cores] == [n for n, each in enumerate(pairs) if each]
    few = lower(LENGTHS.changed(documents="2x2+4x1+4x2"), parse_plan("cp=4,batch=1"))
    assert {op.attributes["step"] for op in few.ops if op.kind == "attention"} == {0}


packings = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@settings(max_examples=30)
@given(packings, st.integers(0, 12), st.sampled_from([1, 2, 3]))
def test_pairs_of_chunks_are_those_of_a_mask(each: list[int], window: int, parts: int) -> None:
    each[-1] += -sum(each) % (2 * parts)
    text = documents.text_of_lengths(each)
    of_token = [number for number, length in enumerate(each) for _ in range(length)]
    size = len(of_token) // (2 * parts)
    expected = [[0] * (2 * parts) for _ in range(2 * parts)]
    for q in range(len(of_token)):
        for k in range(max(0, q - window + 1 if window else 0), q + 1):
            expected[q // size][k // size] += of_token[q] == of_token[k]
    assert documents.seen_pairs(text, window, 2 * parts) == expected
    assert sum(documents.of_ranks(text, window, parts)) == sum(map(sum, expected))


def test_a_rank_with_longer_documents_is_waited_for() -> None:
    """Documents that leave most pairs to some ranks: the step saves less than its FLOPs say, but
    takes less time than whole sequences."""
    gpt = replace(find_model("llama-3.1-8b"), sequence=65536)
    packed = [gpt.changed(documents=text) for text in ("32768+4x8192", "32x1024+32768")]
    machine, plan = load_machine("8x8xH100,8xNDR"), parse_plan("tp=8,cp=4,mbs=1")
    whole_s = predict(gpt, plan, machine).step_s
    for each in packed:
        share = each.model_flops(1) / gpt.model_flops(1)
        assert share < predict(each, plan, machine).step_s / whole_s < 1


def test_shares_of_documents_are_weighed_by_what_they_count() -> None:
    """Of 8 x 8 + 2 (4 x 4) scores a kernel with blocks of 4 rows works through 3 of 4 quarters,
    and all: 80 of 96; its blocks are of 1, 2, 1 and 1 tiles."""
    assert packed_share("8+2x4", 4, 0) == pytest.approx((48 + 32) / 96)
    assert packed_blocks("8+2x4", 4, 0) == (4, 2 * 4 / 5)
    shape = load_machine("dgx-h100").device.attention.shape
    assert shape is not None
    blocks, longest = packed_blocks("4x2048", shape.rows, 0)
    each = 32 * blocks / shape.units
    assert max(each + 0.5, longest) / each == waves(shape, 128, 2048, True)
    op = Op("a", "attention", (), (), flops=96, attributes={"sequence": 16, "documents": "8+2x4"})
    assert causal_flops(op) == 48


def test_attention_on_equal_documents_takes_the_time_of_as_many_sequences() -> None:
    costs = AnalyticCosts(load_machine("dgx-h100"))
    about: Attributes = {"width": 128, "heads": 32, "kv_heads": 32}
    flops = 2 * 8192 * 2048 * 2 * 4096
    as_sequences = Op("a", "attention", (), (), flops=flops, attributes={**about, "sequence": 2048})
    packed = replace(as_sequences, attributes={**about, "sequence": 8192, "documents": "4x2048"})
    assert costs.seconds(packed) == pytest.approx(costs.seconds(as_sequences), rel=1e-12)
    most = replace(packed, attributes={**packed.attributes, BUSIEST: 2.0})
    assert 1.8 < costs.seconds(most) / costs.seconds(packed) < 2


def test_lengths_are_a_list_in_files_and_a_text_elsewhere(tmp_path: Path) -> None:
    assert documents.lengths("8+2x4") == (8, 4, 4)
    assert documents.text_of_lengths([8, 4, 4]) == "8+2x4"
    assert field_value("documents", [8, 4, 4]) == field_value("documents", "8+2x4") == "8+2x4"
    assert with_fields(LENGTHS.changed(documents=""), {"documents": [8, 4, 4]}) == LENGTHS
    file = tmp_path / "own.toml"
    fields = {**LENGTHS.flat(), "documents": "LIST"}
    words = (
        f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for k, v in fields.items()
    )
    file.write_text("\n".join(words).replace("'LIST'", "[8, 4, 4]"))
    assert read_model(file) == LENGTHS


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"documents": "8+4"}, ("documents=8+4", "12", "tokens", "sequence=16")),
        ({"documents": "8+x4"}, ("documents=8+x4", "x4", "4096+2x2048")),
        ({"documents": "8+0+8"}, ("documents=8+0+8", "0", "4096+2x2048")),
        ({"documents": "200000x1"}, ("100,000",)),
        ({"document": 8}, ("documents=8+2x4", "document=8")),
        ({"dropout": 0.1}, ("documents=8+2x4", "dropout", "0.1")),
    ],
)
def test_lengths_that_cannot_be_are_refused(
    changed: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        LENGTHS.changed(**changed)


def test_single_steps_and_hybrids_refuse_documents() -> None:
    with pytest.raises(PlanCannotRunError, check=names("attention=unfused", "documents=8")):
        lower(LENGTHS, parse_plan("attention=unfused"))
    with pytest.raises(ModelError, check=names("pattern", "Mamba-2")):
        find_model("nemotron-3-nano").changed(documents="4096+2x2048")
