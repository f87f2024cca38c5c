"""Words of other frameworks: what a refusal says to write in their place."""

from __future__ import annotations

import pytest

import simgpt as python
from simgpt.api.errors import ArgumentError
from simgpt.arguments.foreign_options import value_of
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from topologies.files.reading import shipped_toml
from workload.descriptions.fields import KINDS
from workload.gpt import find_model, model_names
from workload.plan_text import ALIASES, KEYS
from workload.words.foreign_words import MODEL_WORDS, PLAN_WORDS, plain

MODEL = ("llama-3.1-8b", "-m", "8x8xH100,8xNDR")
TAKES_A_STEP = ("predict", "search", "why", "export", "sbatch", "compare", "plan-run")


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("--tp 8", "--plan tp=8"),
        ("--pp=4", "--plan pp=4"),
        ("--tensor-model-parallel-size 8", "--plan tp=8"),
        ("--micro-batch-size 2", "--plan mbs=2"),
        ("--precision fp8", "--plan precision=fp8"),
        ("--bf16", "--plan precision=bf16"),
        ("--sequence-parallel", "--plan sp=true"),
        ("--use-distributed-optimizer", "--plan zero=1"),
        ("--zero 3", "--plan zero=3"),
        ("--nodes 8", "-n 64 | 8"),
        ("--num-gpus 64", "-n 64"),
        ("--gpus-per-node 8", "-m 8x8xH100"),
        ("--seq-len 4096", "--model-set sequence=4096"),
        ("--num-layers 80", "--model-set layers=80"),
        ("--gbs 512", "--batch 512"),
        ("--global-batch-size 512", "--batch 512"),
        ("--model llama-3.1-8b", "--model"),
        ("--batch 8M", "--batch-tokens 8M"),
        ("--plan tensor-model-parallel-size=8", "tp=8"),
        ("--plan tensor_parallel=8,dp=8", "tp=8"),
        ("--plan fp8=true", "precision=fp8"),
        ("--plan seq_len=4096", "sequence=4096"),
        ("--model-set seq_len=4096", "sequence"),
        ("--stack FSDP2", "torchtitan"),
        ("--stack megatron", "megatron-core"),
        ("--stack Megatron_Core", "megatron-core"),
        ("--set device.peak_flops=2x", "device.peak_flops.bf16"),
    ],
)
def test_a_foreign_word_is_answered_with_ours(words: str, instead: str) -> None:
    said = simgpt("predict", *MODEL, *words.split())
    assert said.status == 2
    assert_names(said.sentence, *instead.split(" | "))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("predict --tp-comm-overlap=true --tp 8", "8"),
        ("predict --tp-comm-overlap true --tp=8", "8"),
        ("predict --tp --pp=4", None),
        ("predict --pp=4 --tp", None),
        ("predict --tp= --pp=4", ""),
        ("predict --set=--tp --pp=4", None),
        ("predict --tp=a=b", "a=b"),
    ],
)
def test_a_value_is_that_of_the_option_alone(words: str, value: str | None) -> None:
    assert value_of(words.split(), "--tp") == value


@pytest.mark.parametrize("command", TAKES_A_STEP)
def test_all_commands_know_them(command: str) -> None:
    assert "--plan tp=8" in simgpt(command, MODEL[0], "--tp", "8").sentence


def test_commands_without_a_plan_say_where_it_stands() -> None:
    assert_names(simgpt("sweep", "--tp", "8").sentence, "--tp", "tp")
    assert "--ranks 16" in simgpt("run", "tiny-2m", "--nodes", "2").sentence


def test_python_says_the_same() -> None:
    with pytest.raises(ArgumentError, check=names("--plan tp=8")):
        python.predict("llama-3.1-8b", "dgx-h100", tp=8)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("machine", "instead"),
    [
        ("H100", "8x8xH100,8xNDR"),
        ("H100", "dgx-h100"),
        ("H100 SXM", "8x8xH100,8xNDR"),
        ("b200", "dgx-b200"),
        ("A100 40GB", "8x8xA100-40,8xNDR"),
        ("MI300X", "8x8xMI300X"),
    ],
)
def test_a_device_is_no_machine(machine: str, instead: str) -> None:
    said = simgpt("predict", "llama-3.1-8b", "-m", machine)
    assert said.status == 2
    assert_names(said.sentence, instead)


@pytest.mark.slow
def test_experts_over_more_ranks_than_data_has_are_told_of_those_of_x() -> None:
    where = ("mixtral-8x7b", "-m", "8x8xH100,8xNDR", "--stack", "megatron-core")
    said = simgpt("predict", *where, "--plan", "tp=8,dp=2,ep=8")
    assert said.status == 3
    assert_names(said.sentence, "etp=1")
    assert simgpt("predict", *where, "--plan", "tp=8,dp=2,ep=8,etp=1").status in (0, 3)
    assert "etp" not in simgpt("predict", *where, "--plan", "tp=2,dp=2,ep=8").sentence


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("meta-llama/Llama-3.1-405B-FP8", "llama-3.1-405b"),
    ],
)
def test_names_of_releases_are_those_of_their_presets(name: str, preset: str) -> None:
    assert find_model(name).name == preset


@pytest.mark.parametrize("name", ["facebook/galactica-6.7b", "zai-org/GLM-9-9B"])
def test_a_family_without_preset_is_not_taken_for_another(name: str) -> None:
    said = simgpt("predict", name, "-m", "dgx-h100").sentence
    assert "layers=32" in said  # fields are asked for, and no preset is offered
    assert not [preset for preset in model_names() if preset in said]


def test_what_is_named_is_a_key_of_a_plan_or_a_field_of_a_model() -> None:
    known = {*KEYS, *ALIASES, "fsdp", "hsdp"}
    assert {word.partition("=")[0] for word in PLAN_WORDS.values()} <= known
    assert set(MODEL_WORDS.values()) <= {*KINDS}
    assert not known & {*PLAN_WORDS}


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
def test_the_names_that_import_reads_are_known(framework: str) -> None:
    """One field each, by a number or a switch."""
    table = shipped_toml("simgpt", f"frameworks/{framework}.toml")
    numbers = {field: plain(name) for field, name in table["numbers"].items()}
    ours = {**dict.fromkeys(KEYS), **ALIASES}
    for field, name in numbers.items():
        word = PLAN_WORDS.get(name, "").partition("=")[0]
        assert field in (ours.get(word) or word, MODEL_WORDS.get(name), name)
