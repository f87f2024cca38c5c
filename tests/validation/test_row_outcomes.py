"""From a row's question to its outcome: which rows share a prediction, what scales with the batch,
what counts as measured, and which rows count in scores."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from simulator.stacks import load_stack
from simulator.stacks.job import Job
from tests.validation.test_anchored import SEEN, row
from tests.validation.test_published import run
from topologies.machine_files import load_machine, with_settings
from validation.published.case import case_as_read
from validation.published.coverage import run_of
from validation.published.measured_step import measured_s
from validation.published.outcome import PREDICTED, Outcome
from validation.published.predicting import Task, predict_runs
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun
from validation.published.scores import changes, source_errors
from workload.gpt import find_model
from workload.plan_text import parse_plan

SMALL = {"framework": "something new", "tp": "2", "pp": "1", "dp": "4"}


def test_rows_share_a_prediction_if_they_differ_in_names_alone() -> None:
    gpt, plan = find_model("tiny-1m"), parse_plan("dp=8", batch=8)
    machine, stack = load_machine("frontier"), load_stack("other")
    task = Task(Job(gpt, plan, stack), machine)
    named = replace(gpt, name="other", source="elsewhere")
    assert Task(Job(named, plan, stack), machine).signature == task.signature
    others = [
        Task(Job(replace(gpt, layers=6), plan, stack), machine),
        Task(Job(gpt, replace(plan, zero=1), stack), machine),
        Task(Job(gpt, plan, load_stack("fsdp")), machine),
        Task(Job(gpt, plan, stack), with_settings(machine, {"device.launch": "9 us"})),
    ]
    assert len({each.signature for each in (task, *others)}) == 5


def test_a_row_whose_batch_is_scaled_has_all_its_times_scaled() -> None:
    """24 sequences are predicted as 32, since each of four ranks has two micro-batches of 4."""
    cells = {**SMALL, "micro_batch": "4"}
    part, whole = predict_runs(
        [run(**cells, global_batch_seqs="24"), run(**cells, id="b", global_batch_seqs="32")],
        lambda _: None,
    )
    for name in ("predicted_s", "low_s", "high_s"):
        assert getattr(part, name) == pytest.approx(0.75 * getattr(whole, name))
    parts = {name: 0.75 * seconds for name, seconds in whole.breakdown_s.items()}
    assert part.breakdown_s == pytest.approx(parts)


@pytest.mark.parametrize(
    ("cells", "flops_per_s"),
    [
        ({"measured_tflops_per_gpu": "100"}, 100e12),
        ({"measured_mfu": "0.5"}, 156e12),  # of an A100's 312 TFLOP/s in bf16
        ({"measured_tflops_per_gpu": "100", "measured_mfu": "0.5"}, 100e12),
        ({}, None),
    ],
)
def test_a_step_that_is_not_published_is_worked_out_from_the_rate(
    cells: dict[str, str], flops_per_s: float | None
) -> None:
    found = run(**SMALL, measured_step_s="", **cells)
    gpt, machine = case_as_read(found).asked, machine_of(found)
    expected = flops_per_s and gpt.model_flops(16) / (8 * flops_per_s)
    assert measured_s(found, gpt, machine) == pytest.approx(expected)
    published = run(**SMALL, measured_step_s="2", **cells)
    assert measured_s(published, gpt, machine) == 2.0


def test_a_row_whose_error_does_not_count_is_in_no_score() -> None:
    """The other one is off by 1.2."""
    rows = [row(SEEN[0], 1.2), replace(row(SEEN[1], 9.0), unscored="a bad day")]
    (error,) = source_errors(rows).values()
    assert error.rows == 1
    assert error.error == pytest.approx(math.log(1.2))
    (change,) = changes(rows, {SEEN[0]: 0.5, SEEN[1]: 0.5}).values()
    assert (change.rows, change.before) == (1, 0.5)
    assert change.after == pytest.approx(math.log(1.2))


@pytest.mark.parametrize(
    ("cells", "split"),
    [
        ({}, (False, False)),
        ({"tp": "2"}, (True, False)),
        ({"gx": "2"}, (True, False)),
        ({"gy": "2"}, (True, False)),
        ({"pp": "2"}, (False, True)),
    ],
)
def test_residuals_are_of_runs_that_split_tensors_or_layers(cells: Any, split: Any) -> None:
    about = {"id": "a", "source": "s", "gpu": "A100-SXM4-80GB", "gpus_total": "8", **cells}
    found = run_of(Outcome(PublishedRun(about), PREDICTED, stack="other"))
    assert (found[:1], found[4:]) == (("other",), (8, *split))
