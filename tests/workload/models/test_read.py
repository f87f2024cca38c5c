"""Every way to say which model, and how each is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.messages import assert_names, names
from workload.descriptions.fields import field_value, model_from_text
from workload.descriptions.from_table import MODEL_BYTES
from workload.descriptions.read import described_model
from workload.errors import ModelError
from workload.gpt import GPT, find_model

SHAPE = {"layers": 2, "hidden": 8, "heads": 2, "sequence": 4, "vocab": 10}
SMALL = GPT.of(name="small", layers=2, hidden=8, heads=2, ffn=32, sequence=4, vocab=10)
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
    assert model_from_text(f"{TEXT} {llama}") == SMALL.changed(
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
    ("text", "named"),
    [
        ("layers=2", ("hidden", "heads", "sequence", "vocab")),
        (f"{TEXT},activation=swiglu", ("ffn",)),
        (f"{TEXT},layers=3", ("layers",)),
        (f"{TEXT},tied", ("tied", "key=value", "layers=96")),
        (f"{TEXT},ffn=", ("ffn=",)),
        (f"{TEXT},kvheads=2", ("kvheads", "kv_heads")),
        (f"{TEXT},xyzzy=2", ("xyzzy", "layers")),
        (f"{TEXT},ffn=1e3", ("ffn", "1e3")),
        (f"{TEXT},tied=yes", ("tied", "yes", "true", "false")),
        (f"{TEXT},dropout=some", ("dropout", "some")),
        (f"{TEXT},dropout=nan", ("dropout=nan", "0", "1")),
        (f"{TEXT},norm=batch", ("norm", "batch", "layernorm", "rmsnorm")),
        (f"{TEXT},ffn=__import__('os')", ("ffn", "__import__('os")),
        (
            "tests/workload",
            ("tests/workload",),
        ),
        ("tests/blocks.py", ("tests/blocks.py",)),
        ("no/such", ("no/such",)),
    ],
)
def test_a_text_that_is_no_model(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as refused:
        described_model(text)
    assert_names(str(refused.value), *named)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[1, 2]", ("m.json", "layers")),
        ("3", ("m.json", "layers")),
        ('{"layers": null}', ("layers", "None")),
        ('{"layers": 2.0}', ("layers", "2.0")),
        ('{"depth": 2}', ("depth",)),
        ('{"hidden_size": 64, "num_hidden_layers": 2}', ("model_type",)),
        ('{"peft_type": "LORA", "r": 8}', ("LORA",)),
        ('{"model_type": "llama", "hidden_size": "64"}', ("hidden_size", "64")),
        ("{", ("m.json", "JSON")),
        ('{"model_type": "llama", "vocab_size": NaN}', ("vocab_size", "NaN")),
        ('{"model_type": "llama", "vocab_size": ' + "9" * 400 + "}", ("vocab_size", "digits")),
        ('{"model_type":' + "[" * 40 + "]" * 40 + "}", ("32",)),
        (" " * (MODEL_BYTES + 1), ("8 MiB",)),
    ],
)
def test_a_json_file_that_is_no_model(content: str, named: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ModelError) as refused:
        described_model(str(path))
    assert_names(str(refused.value), *named)


def test_a_value_of_the_fields_kind_is_itself_and_one_of_another_kind_is_refused() -> None:
    assert [field_value("layers", 2), field_value("dropout", 0)] == [2, 0.0]
    for key, value in (("layers", 2.0), ("layers", True), ("dropout", True), ("norm", 3)):
        with pytest.raises(ModelError, check=names(key, str(value))):
            field_value(key, value)
