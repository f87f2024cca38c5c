"""Verdicts on runs that ran and runs that ran out of memory, and how they are counted."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from simulator.uncertainty.fitting import (
    DOES_NOT_FIT,
    FITS,
    MeasuredPeak,
    MeasuredPeaks,
    kind_of,
)
from validation.memory import verdicts
from validation.memory.few_layers import job_bytes, least_bytes
from validation.memory.memory_questions import ALLOCATED, DEVICE, RESERVED, Answer
from validation.memory.verdicts import VerdictRow, VerdictValidation, validate_verdicts
from workload.gpt import find_model

COLUMNS = (
    "id", "source", "machine", "gpu", "gpus_total", "gpus_per_node", "framework", "layers",
    "hidden", "heads", "ffn_hidden", "seq_len", "vocab", "activation", "precision",
    "global_batch_seqs", "micro_batch", "tp", "pp", "dp", "zero_stage", "recompute",
    "status", "peak_mem_GiB",
)  # fmt: skip
LLAMA_8B = (32, 4096, 32, 14336, 4096, 128256, "swiglu", "bf16")


def row(name: str, p_fits: float, *, ran: bool, share: float | None = None) -> VerdictRow:
    verdict = "fits" if p_fits >= 0.9 else "tight" if p_fits > 0.1 else "does not fit"
    return VerdictRow(name, "s", ran, share, 1, 1, p_fits, verdict)


FOUND = VerdictValidation(
    (
        row("a", 0.95, ran=True, share=0.5),
        row("b", 0.5, ran=True, share=0.8),
        row("c", 0.05, ran=True, share=0.9),
        row("d", 0.0, ran=False),
        row("e", 1.0, ran=False),
    ),
    {},
)


def test_verdicts_are_counted_by_what_happened() -> None:
    found = FOUND.tallies()
    ran, ample, failed = found["ran"], found["ran, peak below 85 % of memory"], found["ran: s"]
    assert (ran.rows, ran.fits, ran.tight, ran.does_not_fit) == pytest.approx(
        (3, 1 / 3, 1 / 3, 1 / 3)
    )
    assert (ample.rows, ample.tight) == (2, 0.5)
    assert failed == ran
    assert (found["out of memory"].fits, found["out of memory"].does_not_fit) == (0.5, 0.5)


def test_the_brier_score_weighs_both_outcomes_alike() -> None:
    ran = (0.05**2 + 0.5**2 + 0.95**2) / 3
    assert FOUND.brier == pytest.approx((ran + 0.5) / 2)


def test_every_row_is_in_one_bin_of_the_reliability_table() -> None:
    bins = {low: (ran, failed) for low, _, ran, failed in FOUND.reliability()}
    assert bins[0.0] == (0, 1)
    assert bins[0.02] == (1, 0)
    assert bins[0.5] == bins[0.9] == (1, 0)
    assert bins[0.98] == (0, 1)
    assert sum(map(sum, bins.values())) == len(FOUND.rows)


def written(tmp_path: Path, *rows: tuple[str, str, int, int, int, str, str]) -> Path:
    """A table of runs by their id, source, dp, micro-batch, ZeRO stage, recompute and status."""
    file = tmp_path / "runs.csv"
    with file.open("w", newline="") as lines:
        table = csv.writer(lines)
        table.writerow(COLUMNS)
        for name, source, dp, mbs, zero, recompute, status in rows:
            own = ["DGX H100", "H100-SXM5-80GB", dp, 8, "Megatron-LM"]
            plan = [64, mbs, 1, 1, dp, zero, recompute, status, 20.0]
            table.writerow([name, source, *own, *LLAMA_8B, *plan])
    return file


def test_runs_are_taken_as_they_are_read_and_not_as_what_would_fit(tmp_path: Path) -> None:
    """8 billion parameters take 16 GB, gradients in fp32 32, AdamW 12 on each of 8 devices, and
    activations of four sequences 73 more: unless layers run again, which nothing says."""
    file = written(
        tmp_path,
        ("large", "a source", 8, 4, 1, "none", ""),
        ("oom", "a source", 8, 4, 1, "none", "oom"),
        ("small", "a source", 64, 1, 3, "full", ""),
    )
    found = {each.id: each for each in validate_verdicts(file).rows}
    assert found["large"].ran
    assert not found["oom"].ran
    assert found["large"].verdict == found["oom"].verdict == DOES_NOT_FIT
    assert found["large"].peak_bytes == found["oom"].peak_bytes > 120 * 10**9
    assert found["small"].verdict == FITS
    assert found["small"].share == pytest.approx(20 / 79.6, abs=0.01)


def test_the_verdict_on_a_run_comes_from_the_peaks_of_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the first source need a quarter of their predicted peak, those of the second four
    times as much as predicted, and each run is told what the other source's need."""
    kind = kind_of(load_stack("megatron-core"), experts=False)
    peaks = [MeasuredPeak("first", kind, -1.4), MeasuredPeak("second", kind, 1.4)]
    known = MeasuredPeaks(peaks, blur=0.001)
    monkeypatch.setattr(verdicts, "measured_peaks", lambda: known)
    how = (8, 1, 1, "full", "")
    file = written(tmp_path, ("one", "first", *how), ("other", "second", *how))
    one, other = validate_verdicts(file).rows
    assert 0.3 < one.peak_bytes / one.capacity_bytes < 3
    assert (one.verdict, other.verdict) == (DOES_NOT_FIT, FITS)
    assert (one.p_fits, other.p_fits) == pytest.approx((0, 1), abs=1e-3)


def job(layers: int, text: str) -> Job:
    from dataclasses import replace

    gpt = replace(find_model("llama-3.1-8b"), layers=layers, sequence=1024)
    return job_of(gpt, text, load_stack("megatron-core"), devices=8, batch=32)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (32, "pp=4,dp=rest,mbs=1"),
        (32, "pp=2,tp=2,dp=rest,mbs=4,zero=1,sp=true"),
        (30, "pp=4,dp=rest,mbs=2,ends_as_layers=true"),
        (32, "pp=2,dp=rest,mbs=1,recompute=full"),
    ],
)
def test_a_line_through_small_models_is_no_larger_than_the_peak(layers: int, text: str) -> None:
    deep = job(layers, text)
    assert 0.7 * job_bytes(deep) < least_bytes(deep) <= job_bytes(deep)


def test_what_a_run_needed_is_said_in_what_was_measured() -> None:
    """100 of tensors, 10 of libraries are predicted, 20 of the driver; 10 % stay in the allocator.

    Each of these runs needed just the 100 that are predicted, or 11 more to the allocator.
    """
    found = Answer(peak_bytes=110, unused=0.1, outside_bytes=20, library_bytes=10)
    assert found.need(RESERVED, 110) == found.need(DEVICE, 130) == 0
    assert found.need(ALLOCATED, 110) == pytest.approx(0.1044, abs=1e-4)  # ln(111 / 100)
