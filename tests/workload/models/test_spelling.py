"""A preset is found by every usual spelling of its name, and by no other's."""

from __future__ import annotations

import pytest

from tests.messages import names
from workload.errors import ModelError
from workload.gpt import find_model, model_names
from workload.models.spelling import words_of


@pytest.mark.parametrize(
    ("spelling", "preset"),
    [
        ("Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama3.1_405b", "llama-3.1-405b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("llama-3-1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("GPT-2", "gpt2"),
        ("nvidia/Nemotron-4-340B-Base", "nemotron-4-340b"),
        ("bigscience/bloom", "bloom-176b"),
    ],
)
def test_a_usual_spelling_is_the_preset(spelling: str, preset: str) -> None:
    assert find_model(spelling) is find_model(preset)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-1.75b",  # not gpt-175b
        "megatron-17b",  # not megatron-1.7b
        "gpt-17-5b",
        "gpt2!",
        "a/b/gpt2",
        "/gpt2",
        "Llama-3.1-7B",
        "",
    ],
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, check=names(repr(name))):
        find_model(name)


def test_an_unknown_size_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(ModelError, check=names("llama-3.1-70b", "llama-3.1-8b")):
        find_model("meta-llama/Llama-3.1-7B")


def test_no_two_presets_have_one_spelling() -> None:
    assert len({words_of(name) for name in model_names()}) == len(model_names())
