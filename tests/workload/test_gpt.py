"""The model's counts, by formula and by summing its program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workload.errors import ModelError
from workload.gpt import GPT, find_model, model_names, read_model
from workload.lowering import lower
from workload.plan import Plan

TWO_LAYERS = GPT(name="two", layers=2, hidden=8, heads=2, ffn=32, sequence=4, vocab=10)


def test_gpt2_has_the_parameters_of_the_released_checkpoint() -> None:
    assert find_model("gpt2").parameters == 124_439_808


def test_parameters_of_a_small_model_by_hand() -> None:
    # Per layer: qkv 8*24+24, out 8*8+8, up 8*32+32, down 32*8+8, two norms 4*8; tables (10+4)*8.
    layer = 216 + 72 + 288 + 264 + 32
    assert TWO_LAYERS.parameters == 2 * layer + 14 * 8 + 2 * 8


def test_flops_of_a_small_model_by_hand() -> None:
    # Per token and layer: 2 * (8*24 + 8*8 + 8*32 + 32*8) for weights, 4*4*8 for attention.
    layer, head = 2 * 768 + 128, 2 * 8 * 10
    assert TWO_LAYERS.model_flops(3) == 3 * (3 * 4) * (2 * layer + head)


@pytest.mark.parametrize("name", model_names())
def test_formula_and_program_agree(name: str) -> None:
    gpt = find_model(name)
    program = lower(gpt, Plan(batch=1, micro_batch=1, recompute="full"))
    assert program.parameters == gpt.parameters
    assert program.model_flops == gpt.model_flops(1)
    assert program.hardware_flops == gpt.hardware_flops(1)


@pytest.mark.parametrize("name", model_names())
def test_formula_agrees_with_the_published_one(name: str) -> None:
    gpt = find_model(name)
    h, layers, s, v = gpt.hidden, gpt.layers, gpt.sequence, gpt.vocab
    published = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    assert gpt.parameters == pytest.approx(published + 2 * h, rel=1e-12)
    flops = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert gpt.hardware_flops(1) == pytest.approx(flops, rel=1e-12)


def test_splitting_a_model_changes_neither_its_flops_nor_its_parameters() -> None:
    gpt = find_model("tiny-1m")
    split = Plan(x=2, y=2, z=2, data=2, batch=8, micro_batch=1, recompute="full")
    program = lower(gpt, split)
    assert program.hardware_flops == gpt.hardware_flops(8)
    assert program.parameters == gpt.parameters


def test_an_unknown_model_is_answered_with_its_neighbours() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'gpt-6b'; did you mean gpt-"):
        find_model("gpt-6b")


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ModelError, match="heads=3 does not divide hidden=8"):
        replace(TWO_LAYERS, heads=3)


def test_a_model_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("layers = 2\nhidden = 8\nheads = 2\nsequence = 4\nvocab = 10\n")
    assert read_model(path) == replace(TWO_LAYERS, name="mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("layers = 2", "hidden, heads, sequence, vocab missing"),
        ("depth = 2", "unknown key 'depth'"),
        ("layers = 'two'", "must be int"),
        ("layers = ", "is no TOML file"),
    ],
)
def test_a_bad_model_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ModelError, match=said):
        read_model(path)
