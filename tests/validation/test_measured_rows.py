"""The measured step of a published row, and rows that share a prediction or must not."""

from __future__ import annotations

import pytest

from tests.validation.test_published import case, run
from validation.published.measured_step import measured_s
from validation.published.outcome import Outcome
from validation.published.predicting import predict_runs
from validation.published.run_machine import machine_of

GPUS, BATCH, A100 = 8, 16, 312e12


def published(**cells: str) -> float | None:
    row = run(**{"measured_step_s": "", **cells})
    return measured_s(row, case().asked, machine_of(row))


def test_a_step_follows_from_the_flops_of_one_gpu_or_their_share_of_the_bf16_peak() -> None:
    flops = case().asked.model_flops(BATCH)
    assert published(measured_tflops_per_gpu="100") == pytest.approx(flops / (GPUS * 100e12))
    assert published(measured_mfu="0.4") == pytest.approx(flops / (GPUS * 0.4 * A100))
    assert published(measured_step_s="7", measured_tflops_per_gpu="100") == 7
    assert published() is None


def predicted(*rows: dict[str, str]) -> list[Outcome]:
    return predict_runs([run(id=f"{n}", **row) for n, row in enumerate(rows)], lambda _: None)


def test_a_batch_that_is_no_multiple_takes_its_share_of_the_step_and_of_each_part() -> None:
    """24 sequences on 8 ranks of micro-batches of 2: three quarters of 32."""
    cells = {"tp": "1", "pp": "1", "dp": "8"}
    part, whole = predicted(
        {**cells, "global_batch_seqs": "24"}, {**cells, "global_batch_seqs": "32"}
    )
    assert part.predicted_s is not None
    assert whole.predicted_s is not None
    assert part.predicted_s == pytest.approx(0.75 * whole.predicted_s)
    assert sum(part.breakdown_s.values()) == pytest.approx(part.predicted_s)


def test_rows_of_one_plan_on_two_machines_have_predictions_of_their_own() -> None:
    """Two nodes of the same GPUs, joined by slow or fast NICs."""
    cells = {"gpus_total": "16", "dp": "4", "nics_per_node": "1"}
    slow, fast, again = predicted(*({**cells, "nic_gbps": rate} for rate in ("25", "400", "25")))
    assert slow.plan == fast.plan
    assert slow.predicted_s is not None
    assert fast.predicted_s is not None
    assert slow.predicted_s > 1.2 * fast.predicted_s
    assert again.predicted_s == slow.predicted_s
