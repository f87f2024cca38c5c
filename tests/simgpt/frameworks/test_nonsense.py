"""Nonsense for every setting that a reader looks at: refused by name, or said; never taken in
silence, and never printed as a plan that `simgpt predict` refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, DEEPSPEED, MEGATRON, NEMO, TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from, reading_of
from topologies.errors import SimgptError
from workload.plan_text import REST, plan_value
from workload.recipes.table import FP8
from workload.splits.plan_values import check_value

DEVICES = 16
SIZES = {
    **{"num-layers": "8", "hidden-size": "256", "num-attention-heads": "8", "seq-length": "512"},
    **{"micro-batch-size": "1", "global-batch-size": "16", "vocab-size": "1000", "bf16": "true"},
}
OF_EXPERTS = {
    **{"num-experts": "8", "moe-router-topk": "2", "disable-bias-linear": "true"},
    **{"expert-model-parallel-size": "2", "moe-grouped-gemm": "true"},
    "moe-token-dispatcher-type": "alltoall",
}
BASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "megatron": (MEGATRON, SIZES),
    "megatron, whole layers again": (MEGATRON, {**SIZES, "recompute-granularity": "full"}),
    "megatron, pipeline": (MEGATRON, {**SIZES, "pipeline-model-parallel-size": "2"}),
    "megatron, experts": (MEGATRON, {**SIZES, **OF_EXPERTS}),
    "megatron, fp8": (MEGATRON, {**SIZES, "fp8-format": "hybrid"}),
    "megatron, fsdp": (MEGATRON, {**SIZES, "use-megatron-fsdp": "true"}),
    "torchtitan": (TORCHTITAN, {"model.name": "llama3", "model.flavor": "8B"}),
    "torchtitan, pipeline": (
        TORCHTITAN,
        {
            **{"model.name": "llama3", "model.flavor": "8B"},
            "parallelism.pipeline_parallel_degree": "2",
        },
    ),
    "deepspeed": (
        DEEPSPEED,
        {"train_batch_size": "16", "zero_optimization.stage": "3", "bf16.enabled": "true"},
    ),
    "bridge": (
        BRIDGE,
        {
            **{"model.num_layers": "8", "model.hidden_size": "256", "model.vocab_size": "1000"},
            **{"model.num_attention_heads": "8", "model.seq_length": "512"},
            **{"train.micro_batch_size": "1", "train.global_batch_size": "16"},
            "mixed_precision": "bf16_mixed",
        },
    ),
}
NONSENSE = ("nonsense", "-3", "nan", "1e400", "0x", "[1, 2]", "9" * 5000)
FREE = (  # whose value is any name or text
    *("tokenizer-model", "tokenizer-name-or-path", "tokenizer-type", "vocab-file"),
    *("model.name", "model.flavor"),
)


NONE = {"moe-expert-capacity-factor": "-3"}  # a number below 0 is Megatron-LM's for none


def asked(framework: str, settings: Mapping[str, Any]) -> ImportedJob:
    described = [Described(framework, settings)]
    return job_from(described, devices=DEVICES, changed={})


def names_of(base: str) -> list[str]:
    """The settings that a reader looks at, by their own names, beside those of the base."""
    framework, settings = BASES[base]
    reading = reading_of(framework, settings, DEVICES, {})
    looked = {reading.names.get(name, name) for name in reading._read}
    if framework in (BRIDGE, NEMO):
        looked = {name if "." in name else f"model.{name.replace('-', '_')}" for name in looked}
    free = {*FREE, *(f"model.{name.replace('-', '_')}" for name in FREE)}
    return sorted({*looked, *settings} - free)


def silent(base: str, name: str, value: str) -> str:
    """What is wrong with the answer to a base with nonsense for a setting, if anything is."""
    framework, settings = BASES[base]
    leaf = name.rpartition(".")[2]
    words = (name, leaf, leaf.replace("_", "-"), leaf.replace("-", "_"))
    try:
        question = asked(framework, {**settings, name: value})
    except SimgptError as error:
        named = any(word in str(error) for word in words) or value[:20] in str(error)
        return "" if named else f"{name} = {value[:20]}: {error}"
    said = (*question.changes, *question.refused, *question.without_effect)
    text = " ".join(f"{each.name} {each.why}" for each in said)
    if not any(word in text for word in words):
        return f"{name} = {value[:20]} is taken in silence"
    return "" if question.refused else refused(question)


def refused(question: ImportedJob) -> str:
    """Why predict would refuse the plan that is printed, if it would."""
    try:
        for key, value in question.plan.items():
            if value not in (REST, FP8):
                check_value(key, plan_value(key, value))
    except SimgptError as error:
        return str(error)
    return ""


def assert_none_silent(base: str, drawn: list[tuple[str, str]]) -> None:
    found = [silent(base, name, each) for name, each in drawn if NONE.get(name) != each]
    assert list(filter(None, found)) == []


@pytest.mark.parametrize("base", BASES)
def test_nonsense_is_refused_by_name_or_said(base: str) -> None:
    """Each setting with one kind of nonsense, with another one in each base."""
    assert not asked(*BASES[base]).refused
    first = list(BASES).index(base)
    kinds = len(NONSENSE)
    names = enumerate(names_of(base), start=first)
    assert_none_silent(base, [(name, NONSENSE[number % kinds]) for number, name in names])


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_all_nonsense_is_refused_by_name_or_said(base: str) -> None:
    assert_none_silent(base, [(name, each) for name in names_of(base) for each in NONSENSE])
