"""Peak memory of whole pipelines beside what was published, nothing fitted to it.

What table 4 of the source does not say of its setup is said elsewhere: attention unfused, with
dropout and its masks, nothing recomputed (table 1 counts s b (34 h + 5 a s) a layer); fp16 with
gradients in fp16, which Megatron-LM has where it is not told to sum them in fp32 (the released
scripts give --fp16 alone), here the same bytes in bf16; a vocabulary of about 32,000, the one with
which all four published parameter counts come out. Left out: what the allocator cannot use, what
kernels ask for while they run, contexts and buffers of CUDA and NCCL. GB are taken as 1e9 bytes;
were they 2^30, predictions would be 7 % lower.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from simulator.predict import predict
from topologies.machine_files import load_machine
from workload.gpt import GPT
from workload.plan import Plan

TOLERANCE = 0.10
Run = dict[str, str]


def published() -> list[Run]:
    file = resources.files("validation").joinpath("data/zero_bubble_memory.csv")
    lines = file.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def gpt_of(run: Run) -> GPT:
    hidden = int(run["hidden"])
    return GPT.of(
        name=run["model"],
        layers=int(run["layers"]),
        hidden=hidden,
        heads=int(run["heads"]),
        ffn=4 * hidden,
        sequence=1024,
        vocab=32_000,
        dropout=0.1,
    )


def error_of(run: Run) -> float:
    """Relative error of the predicted peak of the fullest device."""
    micro_batch, micro_batches = int(run["micro_batch"]), int(run["micro_batches"])
    plan = Plan.of(
        pp=int(run["pipe"]),
        vpp=int(run["interleave"]),
        schedule=run["schedule"],
        ends_as_layers=True,
        batch=micro_batch * micro_batches,
        mbs=micro_batch,
        attention="unfused",
        gradients="bf16",
    )
    prediction = predict(gpt_of(run), plan, load_machine("perlmutter"))
    return prediction.memory.peak_bytes / (float(run["memory_gb"]) * 1e9) - 1


def runs() -> Iterator[Any]:
    """All runs; quick are every schedule of the smallest model and one of each other."""
    seen: set[tuple[str, str]] = set()
    smallest = published()[0]["model"]
    for run in published():
        kind = run["model"], run["schedule"] if run["model"] == smallest else ""
        marks = [pytest.mark.slow] if kind in seen else []
        yield pytest.param(run, id=run["id"], marks=marks)
        seen.add(kind)


@pytest.mark.parametrize("run", list(runs()))
def test_a_pipelines_peak_is_near_the_published_one(run: Run) -> None:
    assert abs(error_of(run)) < TOLERANCE


def test_the_models_have_the_published_numbers_of_parameters() -> None:
    for run in published():
        assert f"GPT-{gpt_of(run).parameters / 1e9:.1f}B" == run["model"]
