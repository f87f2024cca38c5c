"""Names of Hugging Face's Hub: packaged sizes, found by usual spellings and by no others."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.messages import assert_names, names
from workload.descriptions.hub import hub_model, hub_names
from workload.descriptions.read import described_model
from workload.errors import ModelError
from workload.gpt import find_model


def test_sizes_of_many_repositories_come_with_the_place_they_were_read_from() -> None:
    names = hub_names()
    assert len(names) >= 250
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        found = hub_model(name)
        assert found is not None
        assert re.search(r" [\w.-]+/[\w.-]+@[0-9a-f]{40}, \S+$", found.gpt.source), name
        assert found.gpt.source.startswith(f"{name} ")


def test_packaged_sizes_and_presets_of_a_name_are_the_same() -> None:
    """Two readings of the same models: the presets' sources are papers and released files."""
    compared = 0
    for name in hub_names():
        try:
            preset = find_model(name).changed(mtp_layers=0, mtp_pattern="", mtp_shared=False)
        except ModelError:
            continue
        found = hub_model(name)
        assert found is not None
        preset = replace(preset, vocab=found.gpt.vocab)  # of Mixtral 8x22B releases differ in it
        assert found.gpt.parameters + found.missing == preset.parameters, name
        compared += 1
    assert compared >= 80


@pytest.mark.parametrize(
    ("spelling", "hub"),
    [
        ("EleutherAI/pythia-6.9b", "EleutherAI/pythia-6.9b"),
        ("eleutherai/Pythia-6.9B", "EleutherAI/pythia-6.9b"),
        ("pythia-6.9b", "EleutherAI/pythia-6.9b"),
        ("bigscience/bloom-560m", "bigscience/bloom-560m"),  # no length of a context
        ("google/gemma-2-9b-it", "google/gemma-2-9b"),
        ("google/gemma-3-27b-pt", "google/gemma-3-27b-it"),
        ("TheBloke/falcon-7b-instruct-GPTQ", "tiiuae/falcon-7b"),
        ("microsoft/Phi-3-mini-4k-instruct-gguf", "microsoft/Phi-3-mini-4k-instruct"),
        ("unsloth/gemma-3-12b-it-bnb-4bit", "google/gemma-3-12b-it"),
        ("RedHatAI/Qwen2.5-Coder-32B-Instruct-quantized.w4a16", "Qwen/Qwen2.5-Coder-32B"),
        ("allenai/OLMo-2-1124-13B-DPO", "allenai/OLMo-2-1124-13B"),
        ("nvidia/Kimi-K2.5-NVFP4", "moonshotai/Kimi-K2.5"),
        ("MiniMaxAI/MiniMax-M2.5-FP8", "MiniMaxAI/MiniMax-M2.5"),
    ],
)
def test_a_usual_spelling_has_the_sizes_of_its_repository(spelling: str, hub: str) -> None:
    found, own = described_model(spelling), hub_model(hub)
    assert own is not None
    same = replace(found.gpt, name="", source="")
    assert same == replace(own.gpt, name="", source="")


@pytest.mark.parametrize(
    ("spelling", "preset"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b"),
        ("TheBloke/Llama-2-13B-chat-GGUF", "llama-2-13b"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b"),
        ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "qwen2.5-7b"),
        ("hugging-quants/Meta-Llama-3.1-405B-Instruct-AWQ-INT4", "llama-3.1-405b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1-bf16", "mixtral-8x7b"),
    ],
)
def test_a_preset_comes_before_packaged_sizes(spelling: str, preset: str) -> None:
    assert described_model(spelling).gpt == find_model(preset)


@pytest.mark.parametrize("name", ["EleutherAI/pythia-7b", "google/gemma-2-8b", "a/b/pythia-1b", ""])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, check=names(repr(name))):
        described_model(name)


def test_a_name_that_is_not_known_is_answered_with_near_ones() -> None:
    with pytest.raises(ModelError, check=names("google/gemma-2-9b")):
        described_model("google/gemma-2-8b")


def test_a_null_of_a_config_is_not_what_transformers_takes_for_an_absent_key() -> None:
    """Mistral 7B has a window of 4,096 tokens in its first version alone."""
    windows = {"v0.1": 4096, "v0.2": 0, "v0.3": 0}
    for version, window in windows.items():
        found = hub_model(f"mistralai/Mistral-7B-Instruct-{version}")
        assert found is not None
        assert found.gpt.attention.window == window


def test_the_sizes_are_said_with_their_source() -> None:
    first, *_ = described_model("google/gemma-2-9b").notes
    assert_names(first.text, "google/gemma-2-9b")
    assert re.search(r"\S+@[0-9a-f]{40}", first.text)
