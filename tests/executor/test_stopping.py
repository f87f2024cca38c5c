"""A run that is asked to end does so at a step of all its ranks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from executor.launching.launch import launch
from executor.launching.stopping import StopRequest, stopped_by
from executor.launching.task_specs import Job, task_line
from tests.executor.forked_ranks import forked
from workload.gpt import find_model
from workload.plan_text import parse_plan

PATIENCE_S = 250.0


def test_nobody_asked_so_nothing_is_exchanged() -> None:
    def agree(_: int) -> int:
        raise AssertionError("the ranks were asked")

    assert StopRequest(agree).last_step(7, 1.0) is None


@pytest.mark.parametrize(("step_s", "last"), [(60.0, 9), (0.25, 9), (0.1, 12), (0.0, 500_007)])
def test_the_last_step_is_as_far_ahead_as_the_signal_needs_to_reach_all(
    step_s: float, last: int
) -> None:
    """Half a second: two steps of 250 ms, five of 100 ms; two at least."""
    request = StopRequest(lambda step: step)
    request.ask()
    assert request.last_step(7, step_s) == last


def test_the_first_rank_s_step_counts_and_is_asked_for_once() -> None:
    asked: list[int] = []

    def agree(step: int) -> int:
        asked.append(step)
        return 11

    request = StopRequest(agree)
    request.ask()
    assert [request.last_step(step, 1.0) for step in (8, 9)] == [11, 11]
    assert asked == [10]


def test_a_signal_asks_and_what_handled_it_before_does_so_again() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with stopped_by((signal.SIGUSR2,), lambda step: step) as request:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert request.last_step(1, 1.0) == 3
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_later_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ends = [10.0], list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(os, "_exit", ends.append)
    request = StopRequest(lambda step: step)
    for now in (10.0, 10.5, 11.5):
        clock[0] = now
        request.ask(signal.SIGINT)
    assert ends == [130]


@pytest.mark.distributed
def test_an_interrupted_run_ends_with_its_last_step_recorded_on_all_ranks() -> None:
    """The interrupt comes once, to the parent alone, as rank 0 reports step 3."""
    steps, said = list[int](), list[str]()

    def report(message: dict[str, Any]) -> None:
        steps.extend(step for key, step in message.items() if key == "step")
        if steps[-1:] == [3]:
            os.kill(os.getpid(), signal.SIGINT)

    plan = parse_plan("dp=2,precision=fp32", batch=4)
    job = Job(gpt=find_model("tiny-30k"), plan=plan, steps=10**6, device="cpu")
    with forked():
        result = launch(
            *("train", task_line(job)),
            ranks=2,
            report=report,
            timeout_s=PATIENCE_S,
            on_interrupt=lambda: said.append("stopping"),
        )
    assert said == ["stopping"]
    assert 5 <= result["stopped_at_step"] == len(result["losses"]) == steps[-1] < 10**6
    assert all(entry["ops"] for entry in result["ranks"])
