"""Every way to say which model, and how each is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from workload.errors import ModelError
from workload.gpt import GPT, find_model
from workload.models.fields import field_value, model_from_text
from workload.models.from_table import MODEL_BYTES
from workload.models.read import described_model

SHAPE = {"layers": 2, "hidden": 8, "heads": 2, "sequence": 4, "vocab": 10}
SMALL = GPT(name="small", layers=2, hidden=8, heads=2, ffn=32, sequence=4, vocab=10)
TEXT = ",".join(f"{key}={value}" for key, value in SHAPE.items())


def test_a_file_in_toml_or_json_and_a_text_of_the_same_fields_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    toml = "\n".join(f"{key} = {value}" for key, value in SHAPE.items())
    (tmp_path / "small.toml").write_text(toml, encoding="utf-8")
    for text in (str(tmp_path / "small.json"), str(tmp_path / "small.toml"), f"{TEXT},name=small"):
        assert described_model(text).gpt == SMALL
        assert described_model(text).notes == ()
    assert described_model("GPT2").gpt == find_model("gpt2")


def test_a_text_has_any_field_in_its_kind() -> None:
    llama = "kv_heads=1,norm=rmsnorm,activation=swiglu,ffn=20,positions=rope,tied=False,dropout=0.1"
    assert model_from_text(f"{TEXT} {llama}") == replace(
        SMALL,
        name=f"{TEXT} {llama}"[:40] + "…" + f"{TEXT} {llama}"[-39:],
        kv_heads=1,
        norm="rmsnorm",
        activation="swiglu",
        ffn=20,
        positions="rope",
        tied=False,
        dropout=0.1,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("layers=2", "the model: hidden, heads, sequence, vocab missing"),
        (f"{TEXT},activation=swiglu", "the model: ffn missing"),
        (f"{TEXT},layers=3", "layers stands twice in the model"),
        (f"{TEXT},tied", "cannot read 'tied' in the model; write key=value, as in layers=96"),
        (f"{TEXT},ffn=", "cannot read 'ffn=' in the model"),
        (f"{TEXT},kvheads=2", "unknown key 'kvheads' of a model; did you mean kv_heads?"),
        (f"{TEXT},xyzzy=2", "unknown key 'xyzzy' of a model; known: name, layers"),
        (f"{TEXT},ffn=1e3", "ffn = 1e3 must be a whole number"),
        (f"{TEXT},tied=yes", "tied = yes must be true or false"),
        (f"{TEXT},dropout=some", "dropout = some must be a number"),
        (f"{TEXT},dropout=nan", "dropout=nan must be at least 0 and below 1"),
        (f"{TEXT},norm=batch", "norm='batch' must be layernorm or rmsnorm"),
        (f"{TEXT},ffn=__import__('os')", "ffn = __import__('os') must be a whole number"),
        (
            "tests/workload",
            "a model's file ends in .toml or .json, unlike tests/workload; give its ",
        ),
        ("tests/blocks.py", "a model's file ends in .toml or .json, unlike tests/blocks.py"),
        ("no/such", "unknown model 'no/such'"),
    ],
)
def test_a_text_that_is_no_model(text: str, said: str) -> None:
    with pytest.raises(ModelError) as refused:
        described_model(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2]", "is no model: it should be a table of keys such as layers"),
        ("3", "is no model: it should be a table of keys such as layers"),
        ('{"layers": null}', "layers = None must be int"),
        ('{"layers": 2.0}', "layers = 2.0 must be int"),
        ('{"depth": 2}', "unknown key 'depth'"),
        ('{"hidden_size": 64, "num_hidden_layers": 2}', "no model_type"),
        ('{"peft_type": "LORA", "r": 8}', "of an adapter"),
        ('{"model_type": "llama", "hidden_size": "64"}', 'hidden_size = "64" must be a whole'),
        ("{", "is not valid JSON"),
        ('{"model_type": "llama", "vocab_size": NaN}', "vocab_size = NaN must be a whole number"),
        ('{"model_type": "llama", "vocab_size": ' + "9" * 400 + "}", "hundreds of digits"),
        ('{"model_type":' + "[" * 40 + "]" * 40 + "}", "nested more than 32 deep"),
        (" " * (MODEL_BYTES + 1), "is larger than 8 MiB, as no model is"),
    ],
)
def test_a_json_file_that_is_no_model(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ModelError) as refused:
        described_model(str(path))
    assert said in str(refused.value)


def test_a_value_of_the_fields_kind_is_itself_and_one_of_another_kind_is_refused() -> None:
    assert [field_value("layers", 2), field_value("dropout", 0)] == [2, 0.0]
    for key, value in (("layers", 2.0), ("layers", True), ("dropout", True), ("norm", 3)):
        with pytest.raises(ModelError, match="must be"):
            field_value(key, value)
