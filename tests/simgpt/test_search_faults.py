"""A search whose process is killed, or does not answer, answers with the best plan so far."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from simulator import search as searching
from simulator.pool import Pool
from simulator.predict import Prediction
from simulator.search import Progress, SearchError
from tests.messages import assert_names
from tests.simgpt.face import simgpt

SEARCH = (
    *("search", "tiny-1m", "-m", "perlmutter", "-n", "8", "--batch", "8", "--json"),
    *("--plan", "pp=1,y=1,zero=1,mbs=1,overlap=all,order=tp-dp-pp"),
    *("--workers", "2"),
)


ENDED = "process 1 ended"


FRONTS = (
    *(*SEARCH[:-3], f"{SEARCH[-3]},recompute=full", "--workers", "1"),
    *("--memory-front", "--also-devices", "4"),
)


def assert_said_of_both_fronts(err: str) -> None:
    """Why, what is left out of the front of memory, and what of that of devices."""
    why, _, devices = err.splitlines()
    assert why == ENDED
    assert_names(devices, "4", ENDED)


class Ailing(Pool):
    """Workers one of whose processes is hit by a signal once a plan is found."""

    number: signal.Signals

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._has_plan = False

    def wait(self) -> tuple[int, Any]:
        pid = self._workers[0].process.pid
        assert pid is not None
        if self._has_plan:
            with suppress(ProcessLookupError):
                os.kill(pid, self.number)
        number, result = super().wait()
        self._has_plan |= isinstance(result, Prediction)
        return number, result


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (signal.SIGKILL, "signal 9"),
        pytest.param(signal.SIGSTOP, "3 s", marks=pytest.mark.slow),  # how long nothing came
    ],
)
def test_a_search_that_loses_a_process_answers_with_the_best_plan_so_far(
    number: signal.Signals, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ailing, "number", number, raising=False)
    monkeypatch.setattr(searching, "Pool", Ailing)
    monkeypatch.setattr(searching, "LONGEST_S", 3.0)
    monkeypatch.setattr(
        "simulator.search.branch_and_bound.WORTH", 1
    )  # all of it is for the processes
    said = simgpt(*SEARCH)
    answer = json.loads(said.out)
    assert said.status == 0
    assert answer["optimal"] is False
    assert len(answer["plans"]) >= 1
    assert 0 < answer["gap"] <= 1
    assert_names(said.err.splitlines()[-1], named, "--workers 1")


def lost_after(patch: pytest.MonkeyPatch, searches: int) -> None:
    """Have each search but the first ones lose a process before it finds a plan."""
    begun, search = [0], searching.search

    def losing(*words: Any, **how: Any) -> Iterator[Progress]:
        begun[0] += 1
        if begun[0] > searches:
            raise SearchError(ENDED)
        yield from search(*words, **how)

    patch.setattr(searching, "search", losing)


def test_without_any_plan_so_far_the_loss_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_after(monkeypatch, 0)
    said = simgpt(*SEARCH)
    assert (said.status, said.out) == (5, "")
    assert said.sentence == f"simgpt: {ENDED}"


@pytest.mark.slow
def test_a_loss_along_a_front_after_a_plan_was_found_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was found on the front is not certain, so it is left out rather than an answer."""
    begun, search = [0], searching.search

    def losing(*words: Any, **how: Any) -> Iterator[Progress]:
        begun[0] += 1
        for state in search(*words, **how):
            if begun[0] > 1 and state.found:
                yield replace(state, bound=state.best / 2, is_optimal=False)
                raise SearchError(ENDED)
            yield state

    monkeypatch.setattr(searching, "search", losing)
    said = simgpt(*FRONTS)
    assert len(json.loads(said.out)["memory_front"]) == 1
    assert_said_of_both_fronts(said.err)


def test_a_loss_along_a_front_keeps_what_was_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_after(monkeypatch, 1)
    said = simgpt(*FRONTS)
    answer = json.loads(said.out)
    assert (said.status, answer["optimal"]) == (0, True)
    assert len(answer["memory_front"]) == len(answer["devices_front"]) == 1
    assert_said_of_both_fronts(said.err)
