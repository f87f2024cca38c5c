"""Which causes are named for a measured step of known parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.predict import predict
from tests.messages import assert_names
from topologies.machine_files import load_machine
from validation.jobs.anatomy import Anatomy, Communicator
from validation.jobs.causes import AS_PREDICTED
from validation.jobs.comparison import JobComparison
from validation.jobs.measured_job import LoggedSteps, MeasuredJob, statistics
from workload.gpt import find_model
from workload.plan_text import parse_plan

PLAN = parse_plan("dp=8", batch=16)
TOLD = predict(find_model("tiny-1m"), PLAN, load_machine("frontier"))
GATHER, SUM = Communicator("all_gather", 8), Communicator("all_reduce", 8)
PREDICTED = Anatomy(
    steps=1,
    step_s=1.0,
    classes_s={"matmul": 0.5, "attention": 0.1, "elementwise": 0.15, "optimizer": 0.05},
    communicators_s={GATHER: 0.3, SUM: 0.1},
    compute_s=0.8,
    overlapped_s=0.2,
    exposed_s=0.2,
    idle_s=0.0,
)


def compared(measured: Anatomy | None, *steps: float, **job: Any) -> JobComparison:
    """A step that is predicted to take 1 s, beside measured ones."""
    seconds = steps or (measured.step_s if measured else 1.0,)
    entries = tuple(LoggedSteps(n, n, s) for n, s in enumerate(seconds, start=1))
    mine = MeasuredJob("test", entries, warm_up=0, anatomy=measured, **job)
    told = replace(TOLD, step_s=1.0)
    return JobComparison(mine, statistics(mine), told, PREDICTED if measured else None, batch=16)


def test_a_step_as_predicted_has_no_causes() -> None:
    assert compared(PREDICTED).causes == (AS_PREDICTED,)


def test_slow_kernels_are_named_with_the_class_that_is_off_most() -> None:
    classes = {**PREDICTED.classes_s, "matmul": 0.62, "attention": 0.124}
    slow = replace(PREDICTED, step_s=1.144, compute_s=0.944, classes_s=classes)
    (said,) = compared(slow).causes
    assert_names(said, "compute", "18 %", "matmul", "1.2")


def test_compute_of_more_than_twice_the_prediction_is_a_multiple_of_it() -> None:
    slow = replace(PREDICTED, step_s=2.6, compute_s=2.4)
    assert_names(compared(slow).causes[0], "compute", "3.0")


def test_kernels_that_are_faster_than_predicted_are_the_machines_files_fault() -> None:
    classes = {**PREDICTED.classes_s, "elementwise": 0.05}
    (said,) = compared(replace(PREDICTED, compute_s=0.7, classes_s=classes)).causes
    assert_names(said, "compute", "13 %", "elementwise", "0.3")


def test_communication_that_nothing_hides_any_more_is_put_down_to_overlap() -> None:
    bare = replace(PREDICTED, step_s=1.2, overlapped_s=0.0, exposed_s=0.4)
    (said,) = compared(bare).causes
    assert_names(said, "communication", "2.0", "overlap")


def test_slow_collectives_are_named() -> None:
    slow = replace(PREDICTED, step_s=1.4, exposed_s=0.6, communicators_s={GATHER: 0.35, SUM: 0.45})
    (said,) = compared(slow).causes
    assert_names(said, "communication", "3.0", "all_reduce", "8", "4.5")
    assert "overlap" not in said


def test_an_idle_device_waits_for_its_host() -> None:
    (said,) = compared(replace(PREDICTED, step_s=1.25, idle_s=0.25)).causes
    assert_names(said, "20 %", "host")


def test_steps_that_scatter_are_said() -> None:
    """Of eleven steps, p10 and p90 are the second and the tenth."""
    found = compared(None, *(1.0,) * 9, 1.4, 1.5)
    assert_names(found.causes[0], "p90", "1.4", "p10")


@pytest.mark.parametrize(
    ("peak_of", "is_said"), [("allocated", True), ("reserved", False), ("device", False)]
)
def test_more_memory_than_predicted_is_said_of_what_is_allocated(
    peak_of: str, is_said: bool
) -> None:
    peak = 1.3 * TOLD.memory.peak_bytes
    (said,) = compared(PREDICTED, peak_bytes=peak, peak_of=peak_of).causes
    assert ("memory" in said and "30 %" in said) == is_said


@pytest.mark.parametrize("peak_of", ["allocated", "reserved", "device"])
def test_less_memory_than_predicted_is_said_whatever_is_measured(peak_of: str) -> None:
    """What an allocator or a device holds is at least what tensors need."""
    peak = 0.6 * TOLD.memory.peak_bytes
    (said,) = compared(PREDICTED, peak_bytes=peak, peak_of=peak_of).causes
    assert_names(said, "memory", "40 %", "less")


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"batch": 32}, ("batch", "32", "16")),
        ({"ranks": 16}, ("ranks", "16", "8")),
        ({"plan": "tp=2"}, ("plan", "tp=2", "dp=8")),
    ],
    ids=["batch", "ranks", "plan"],
)
def test_of_two_different_steps_nothing_else_is_said(
    job: dict[str, Any], named: tuple[str, ...]
) -> None:
    (said,) = compared(replace(PREDICTED, idle_s=0.5), **job).causes
    assert_names(said, *named)


def test_a_step_out_of_its_range_without_parts_asks_for_a_trace() -> None:
    found = compared(None, 3.0)
    assert not found.is_within
    (said,) = found.causes
    assert_names(said, "torch.profiler")


def test_where_a_trace_has_no_group_sizes_kinds_are_compared() -> None:
    """Two gathers of 0.1 s without a size, beside 0.3 s predicted of gathers of 8."""
    bare = replace(PREDICTED, communicators_s={Communicator("all_gather"): 0.2, SUM: 0.1})
    rows = compared(bare).kernels()[4:]
    assert rows == [("all_gather", 0.2, 0.3), ("all_reduce", 0.1, 0.1)]
    sized = compared(replace(PREDICTED, communicators_s={GATHER: 0.2})).kernels()[4:]
    assert sized == [("all_gather of 8", 0.2, 0.3), ("all_reduce of 8", 0.0, 0.1)]


@pytest.mark.parametrize(
    ("words", "is_known"), [("overlap=ors+oag", True), ("overlap=dp", True), ("overlap=ors", False)]
)
def test_the_optimizers_timer_is_the_update_alone_where_gathers_overlap(
    words: str, is_known: bool
) -> None:
    """Parameters that are gathered behind the update count in the timer, which is then no part of
    a prediction."""
    plan = parse_plan(f"dp=8,zero=3,{words}", batch=16)
    found = compared(None, timers_s={"optimizer": 0.2})
    found = replace(found, prediction=replace(found.prediction, plan=plan))
    update_s = found.prediction.breakdown_s["optimizer"] if is_known else None
    assert found.timers() == [("optimizer", 0.2, update_s)]
