"""Nonsense for every key of a `config.json` that a family has: refused by its key or its field, or
said, or of the key's own kind."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import Any

import pytest

from workload.descriptions.configs import families
from workload.descriptions.configs.kinds import KINDS
from workload.descriptions.fields import KINDS as FIELDS
from workload.descriptions.hugging_face import model_from_config
from workload.errors import ModelError
from workload.gpt import GPT

TABLES = families.tables()
ROWS = {name: families.row_of(TABLES["families"], name) for name in TABLES["families"]}
# A row that stands for those that are like it, and rows of each way to say more than a key can.
TRIED = (
    *("gpt2", "llama", "mistral", "qwen3", "gpt_oss", "nemotron_h", "qwen3_moe", "deepseek_v2"),
    *("deepseek_v3", "gemma3_text", "glm4_moe", "ernie4_5_moe", "llama4_text", "falcon", "dbrx"),
    *("hunyuan_v1_moe", "opt", "seed_oss"),
)
VALUES: tuple[Any, ...] = (
    9,
    -3,
    2.5,
    float("inf"),
    float("nan"),
    True,
    "text",
    [1],
    {"a": 1},
    "",
    [],
    {},
    10**30,
)
EVERY = 5  # value of these in turn is tried of a key; the others in the slow run
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "nemotron_h": {"hybrid_override_pattern": "M-M*", "num_hidden_layers": 4},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_moe": {"num_experts": 4},
}
OF_FIELDS = {"str": "text", "bool": "switch", "int": "count", "float": "number"}
OF_PYTHON = {str: "text", list: "list", bool: "switch", int: "count", float: "number"}


def keys_of(family: dict[str, Any]) -> list[str]:
    """The keys that a family's config may have, but for those without effect."""
    of_tables = chain(*(family[name] for name in ("absent", "biases", "only")))
    return sorted(
        {
            *chain(*family["keys"].values()),
            *of_tables,
            *family["dropouts"],
            *family["said"],
            *family["activation"]["key"],
            *chain(*TABLES["kinds"].values()),
        }
        - {"model_type", *(key for key in family["absent"] if "." in key)}
    )


def kind_of(family: dict[str, Any], key: str) -> str:
    """The kind that a key's values should have, if that is known."""
    if key in family["absent"]:
        return OF_PYTHON[type(family["absent"][key])]
    if key in family["biases"]:
        return "switch"
    for field, keys in family["keys"].items():
        if key in keys:
            return OF_FIELDS[FIELDS[field]]
    return next((kind for kind, keys in TABLES["kinds"].items() if key in keys), "")


def silent(name: str, key: str, value: Any) -> bool:
    """Whether a value of another kind than its key's is taken, and nothing is said."""
    family = ROWS[name]
    kind = kind_of(family, key)
    try:
        found = model_from_config({**document_of(name), key: value}, "c.json", name="m")
    except ModelError as error:
        if kind and KINDS[kind][1](value):
            return False
        fields = [field for field, keys in family["keys"].items() if key in keys]
        assert any(word in str(error) for word in (key, *fields, "router_groups", "shared_ffn"))
        return False
    if kind and KINDS[kind][1](value):
        return False
    is_said = any(key in note.text for note in found.notes)
    return not is_said and (bool(kind) or found.gpt == plain(name))


def document_of(name: str) -> dict[str, Any]:
    """The shortest config of a family."""
    return {"model_type": name, **NEEDED.get(name, {})}


@cache
def plain(name: str) -> GPT:
    """The model of that config."""
    return model_from_config(document_of(name), "c.json", name="m").gpt


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TRIED)
def test_a_value_of_another_kind_is_refused_or_said(name: str, every: int) -> None:
    keys = keys_of(ROWS[name])
    found = [
        (key, value)
        for at, key in enumerate(keys)
        for value in VALUES[at % every :: every]
        if silent(name, key, value)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, True),
        ({"rope_type": 9}, True),
        ({"factor": 8.0}, True),
        ({"rope_type": "default", "rope_theta": 1e4}, False),
        ({}, False),
        ({"rope_type": "linear", "factor": 2.0}, False),
    ],
)
def test_a_scaling_that_is_not_read_is_said(table: dict[str, Any], said: bool) -> None:
    found = model_from_config({"model_type": "llama", "rope_scaling": table}, "c", name="m")
    assert any("rope_scaling" in note.text for note in found.notes) == said
