"""Megatron-LM's measured peaks of its test with latent attention, and ours of nearly that model.

That test adds a table of positions to the embedding beside those of latent attention, and has
biases in all other linears: less than a hundredth of its bytes, which ours has not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from validation.memory.golden_runs import GoldenRun, golden_runs
from validation.memory.memory_questions import MeasuredStage, answer

# Arguments of tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp2_pp2_mla.
LATENT: dict[str, Any] = {
    "q_rank": 192,
    "kv_rank": 64,
    "head_width": 16,
    "rope_width": 8,
    "value_width": 16,
}


@pytest.mark.parametrize("row", ["mcore-319", "mcore-322"])
def test_the_peak_of_latent_attention_is_megatrons(row: str) -> None:
    measured = next(run for run in golden_runs() if run.id == row)
    run = GoldenRun({**measured.cells, "mla": ""})
    gpt = run.job.gpt.changed(positions="rope", biases=False, **LATENT)
    job = replace(run.job, gpt=gpt)
    found = answer(MeasuredStage(job, run.machine, job.plan.pp - 1))
    assert found.peak_bytes + run.library_bytes == pytest.approx(run.measured_bytes, rel=0.015)
