"""Dates of published runs, and the stacks of their time."""

from __future__ import annotations

import pytest

from topologies.machine_files import load_machine
from validation.published.dialect import dialect_of
from validation.published.runs import PublishedRun


def run(**cells: str) -> PublishedRun:
    return PublishedRun({"id": "a-1", "source": "somebody", **cells})


@pytest.mark.parametrize(
    ("cells", "date"),
    [
        ({}, ""),
        ({"notes": "FSDP; 2025-02-22, HEAD", "source": "arXiv 2312.12391"}, "2025-02"),
        ({"provenance": "x@HEAD:benchmarks/llama3_h100_202412_titan.md"}, "2024-12"),
        ({"provenance": "x@HEAD:benchmarks/h100_2025-06_titan.md"}, "2025-06"),
        ({"source": "Launcher 23.03 README"}, "2023-03"),
        ({"source": "SC21 (arXiv 2104.04473)"}, "2021-04"),
        ({"source": "speed results (2026)"}, "2026"),
        ({"notes": "387 TFLOP/s, 23.03 s a step, 2048 tokens"}, ""),
        ({"provenance": "github:a/b@7314958:log-20231"}, ""),
    ],
)
def test_a_row_is_of_its_run_or_release_or_else_of_its_publication(
    cells: dict[str, str], date: str
) -> None:
    assert run(**cells).date == date


@pytest.mark.parametrize(
    ("framework", "source", "stack"),
    [
        ("Megatron-LM", "arXiv 2104.04473", "megatron-lm-2021"),
        ("Megatron-LM", "arXiv 2205.05198", "megatron-lm-2022"),
        ("Megatron-LM", "a blog of 2022-05-03", "megatron-lm-2023"),
        ("Megatron-LM (a fork)", "arXiv 2310.00001", "megatron-core-2023"),
        ("Megatron-LM", "arXiv 2409.00001", "megatron-core"),
        ("Megatron-LM", "nobody says when", "megatron-core"),
        ("NeMo Megatron", "Launcher 23.03", "nemo@23.05"),
        ("NeMo/Megatron-Core", "NeMo 24.03", "nemo@24.05"),
        ("NeMo/Megatron-Core", "NeMo 24.07", "nemo"),
        ("Megatron-DeepSpeed", "arXiv 2310.00001", "megatron-deepspeed"),
    ],
)
def test_megatron_and_nemo_are_those_of_their_time(framework: str, source: str, stack: str) -> None:
    assert dialect_of(run(framework=framework, source=source, pp="2")).stack.name == stack


def test_before_cudnn_9_hopper_has_flash_attention_2() -> None:
    hopper = load_machine("dgx-h100")
    for early, late in (("24.03", "24.07"), ("2023-10", "2024-10")):
        framework = "nemo" if "." in early else "megatron-core"
        stacks = [dialect_of(run(framework=framework, source=f"of {day}")).stack
                  for day in (early, late)]  # fmt: skip
        assert [bool(stack.stands_over(hopper)) for stack in stacks] == [False, True]
