"""The model's counts, by formula and by summing its program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.messages import names
from workload.descriptions.from_table import read_model
from workload.errors import ModelError
from workload.gpt import GPT, find_model, model_names
from workload.lowering import lower
from workload.model.fields import KEYS
from workload.plan import Plan

TWO_LAYERS = GPT.of(name="two", layers=2, hidden=8, heads=2, ffn=32, sequence=4, vocab=10)
SMALL_LLAMA = TWO_LAYERS.changed(
    heads=4,
    kv_heads=2,
    head_width=3,
    ffn=20,
    norm="rmsnorm",
    activation="swiglu",
    positions="alibi",
    biases=False,
    tied=False,
)


def is_gpt2_like(gpt: GPT) -> bool:
    return gpt.positions == "learned"


def test_gpt2_has_the_parameters_of_the_released_checkpoint() -> None:
    assert find_model("gpt2").parameters == 124_439_808


def test_parameters_of_a_small_model_by_hand() -> None:
    # Per layer: qkv 8*24+24, out 8*8+8, up 8*32+32, down 32*8+8, two norms 4*8; tables (10+4)*8.
    layer = 216 + 72 + 288 + 264 + 32
    assert TWO_LAYERS.parameters == 2 * layer + 14 * 8 + 2 * 8


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("bloom-176b", 176_247_271_424),
        ("mpt-7b", 6_649_286_656),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_241_732_096),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
    ],
)
def test_a_preset_has_the_parameters_of_the_released_checkpoint(name: str, parameters: int) -> None:
    assert find_model(name).parameters == parameters


def test_parameters_of_a_small_llama_by_hand() -> None:
    # Per layer: qkv 8*(12+6+6), out 12*8, gate and up 8*40, down 20*8, two gains of 8.
    layer = 192 + 96 + 320 + 160 + 16
    assert SMALL_LLAMA.parameters == 2 * layer + 2 * 10 * 8 + 8


def test_parameters_of_biases_and_norms_of_queries_and_keys_by_hand() -> None:
    # Per layer more: biases of 12 + 6 + 6 columns, two gains of a head's width 3.
    qwen = SMALL_LLAMA.changed(qkv_bias=True, qk_norm=True)
    assert qwen.parameters == SMALL_LLAMA.parameters + 2 * (24 + 6)
    assert lower(qwen, Plan(tp=2, batch=2, mbs=1)).parameters == qwen.parameters


def test_flops_of_a_small_llama_by_hand() -> None:
    # Per token and layer: twice the 768 weights, and 4 * sequence * (4 heads of width 3).
    layer, head = 2 * 768 + 4 * 4 * 12, 2 * 8 * 10
    llama = SMALL_LLAMA
    assert llama.model_flops(3) == 3 * (3 * 4) * (2 * layer + head)
    assert lower(llama, Plan(batch=3, mbs=3)).model_flops == llama.model_flops(3)


def test_flops_of_a_small_model_by_hand() -> None:
    # Per token and layer: 2 * (8*24 + 8*8 + 8*32 + 32*8) for weights, 4*4*8 for attention.
    layer, head = 2 * 768 + 128, 2 * 8 * 10
    assert TWO_LAYERS.model_flops(3) == 3 * (3 * 4) * (2 * layer + head)


SIZES = {"name", "source", "layers", "hidden", "heads", "kv_heads", "ffn", "sequence", "vocab"}
SIZES |= {"experts", "topk", "expert_ffn", "rope_base", "rope_scaling", "norm_eps"}


def smallest_of_each_kind() -> set[str]:
    """Of presets that differ in sizes alone, the one of fewest layers."""
    kinds: dict[tuple[object, ...], str] = {}
    for name in sorted(model_names(), key=lambda name: find_model(name).layers):
        gpt = find_model(name)
        own = (gpt.value(each) for each in KEYS if each not in SIZES)
        kinds.setdefault((gpt.attention.kv_heads > 0, gpt.moe.experts > 0, *own), name)
    return set(kinds.values())


QUICK = smallest_of_each_kind()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in model_names()
    ],
)
def test_formula_and_program_agree(name: str) -> None:
    gpt = find_model(name)
    if name in QUICK and not gpt.pattern:
        gpt = replace(gpt, layers=min(gpt.layers, 4))
    program = lower(gpt, Plan.of(batch=1, mbs=1, recompute="full"))
    assert program.parameters == gpt.parameters
    assert program.model_flops == gpt.model_flops(1)
    assert program.hardware_flops == gpt.hardware_flops(1)


@pytest.mark.parametrize("name", [n for n in model_names() if is_gpt2_like(find_model(n))])
def test_formula_agrees_with_the_published_one(name: str) -> None:
    gpt = find_model(name)
    h, layers, s, v = gpt.hidden, gpt.layers, gpt.sequence, gpt.vocab
    published = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    assert gpt.parameters == pytest.approx(published + 2 * h, rel=1e-12)
    flops = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert gpt.hardware_flops(1) == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize("name", ["tiny-1m", "tiny-llama-1m"])
def test_splitting_a_model_changes_neither_its_flops_nor_its_parameters(name: str) -> None:
    gpt = find_model(name)
    split = Plan.of(tp=2, y=2, z=2, dp=2, batch=8, mbs=1, recompute="full")
    program = lower(gpt, split)
    assert program.hardware_flops == gpt.hardware_flops(8)
    assert program.parameters == gpt.parameters


def test_an_unknown_model_is_answered_with_its_neighbours() -> None:
    with pytest.raises(ModelError, check=names("gpt-6b")):
        find_model("gpt-6b")


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ModelError, check=names("heads=3", "hidden=8")):
        TWO_LAYERS.changed(heads=3)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"kv_heads": 3}, ("kv_heads=3", "heads=2")),
        ({"kv_heads": -1}, ("kv_heads=-1", "0")),
        ({"hidden": 10**9}, ("hidden=1000000000", "200,000")),
        ({"layers": 10**6}, ("layers=1000000", "10,000")),
        ({"norm": "batchnorm"}, ("norm", "batchnorm", "layernorm", "rmsnorm")),
        ({"positions": "rope", "head_width": 5}, ("rope", "5")),
        ({"positions": "rope", "rope_base": 1}, ("rope_base=1", "2")),
        ({"dropout": 1.0}, ("dropout=1.0", "0", "1")),
        ({"qkv_bias": True}, ("qkv_bias=true", "biases=true")),
        ({"qk_norm": True}, ("qk_norm=true", "norm=rmsnorm", "layernorm")),
        ({"norm_eps": 0.0}, ("norm_eps=0", "0", "1")),
        ({"rope_scaling": "linear:factor=2"}, ("positions=rope",)),
        (
            {"positions": "rope", "rope_scaling": "su:factor=2"},
            ("rope_scaling=su:factor=2", "none", "linear", "llama3", "yarn"),
        ),
        ({"positions": "rope", "rope_scaling": "linear"}, ("rope_scaling=linear",)),
        ({"positions": "rope", "rope_scaling": "linear:factor=x"}, ("factor=x",)),
        (
            {"positions": "rope", "rope_scaling": "linear:beta=2"},
            ("rope_scaling=linear:beta=2", "beta", "factor"),
        ),
        ({"positions": "rope", "rope_scaling": "llama3:factor=8"}, ("low_freq_factor=0",)),
    ],
)
def test_a_model_that_cannot_be_is_refused(changed: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        TWO_LAYERS.changed(**changed)


def test_a_head_width_of_its_own_need_not_divide_the_hidden_width() -> None:
    assert TWO_LAYERS.changed(heads=3, head_width=4).bands == (12, 12, 12)


def test_a_llama_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "layers = 2\nhidden = 8\nheads = 4\nkv_heads = 2\nhead_width = 3\nffn = 20\n"
        "sequence = 4\nvocab = 10\nnorm = 'rmsnorm'\nactivation = 'swiglu'\n"
        "positions = 'alibi'\nbiases = false\ntied = false\n"
    )
    assert read_model(path) == replace(SMALL_LLAMA, name="mine")


def test_a_model_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("layers = 2\nhidden = 8\nheads = 2\nsequence = 4\nvocab = 10\n")
    assert read_model(path) == replace(TWO_LAYERS, name="mine")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("layers = 2", ("hidden", "heads", "sequence", "vocab")),
        ("depth = 2", ("depth",)),
        ("layers = 'two'", ("layers", "'two'")),
        ("layers = ", ("mine.toml", "TOML")),
        ("biases = 1", ("biases", "1")),
        ("dropout = '0.1'", ("dropout", "0.1")),
        ("layers = 2\nhidden = 8\nactivation = 'swiglu'", ("heads", "sequence", "vocab", "ffn")),
    ],
)
def test_a_bad_model_file_is_refused(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ModelError, check=names(*named)):
        read_model(path)
