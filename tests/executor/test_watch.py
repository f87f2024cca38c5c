"""Ranks are watched until one has the result: what they say, how they end, and that they go on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from executor.errors import LaunchError
from executor.launching import watch as watching
from executor.launching.procfs import STOPPED, state_of
from executor.launching.rank_processes import end
from executor.launching.watch import watch
from tests.executor.scripts import SLEEP, acting, says
from tests.messages import names

PATIENCE_S = 600.0


def ignore(_: dict[str, Any]) -> None:
    return


def test_rank_0_alone_is_reported_and_its_result_returned(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    first = f"{says(step=1)}; {says(step=2)}; {says(result={'step_s': 3})}"
    with acting(tmp_path, first, f"{says(step=1)}; {SLEEP}") as ranks:
        assert watch(ranks, heard.append, PATIENCE_S) == {"step_s": 3}
    assert heard == [{"step": 1}, {"step": 2}]


@pytest.mark.slow
def test_a_rank_of_which_nothing_is_heard_for_the_timeout_ends_the_run(tmp_path: Path) -> None:
    with acting(tmp_path, f"{says(step=4)}; {SLEEP}") as ranks:
        assert ranks[0].listen() == [{"step": 4}]
        with pytest.raises(LaunchError, check=names("1 s", "--timeout", "rank 0", "step 4")):
            watch(ranks, ignore, 1.0)


def test_a_silent_rank_is_found_although_rank_0_goes_on(tmp_path: Path) -> None:
    talks = f"while true; do {says(step=1)}; sleep 0.05; done"
    with acting(tmp_path, talks, SLEEP) as ranks:
        ranks[1].heard_s -= PATIENCE_S
        with pytest.raises(LaunchError, check=names("600 s", "--timeout", "rank 1")):
            watch(ranks, ignore, PATIENCE_S)


def test_a_stopped_rank_is_named_long_before_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "STOPPED_S", 0.5)
    with acting(tmp_path, SLEEP, SLEEP) as ranks:
        os.kill(ranks[1].process.pid, signal.SIGSTOP)
        with pytest.raises(LaunchError, check=names("rank 1", "SIGSTOP")):
            watch(ranks, ignore, PATIENCE_S / 10)
        end(ranks, finished=False)
        assert [each.process.returncode for each in ranks] == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_rank_that_goes_on_after_a_short_stop_is_left_alone(tmp_path: Path) -> None:
    with acting(tmp_path, f"kill -STOP $$; {says(result={})}") as ranks:
        while state_of(ranks[0].process.pid).state != STOPPED:
            time.sleep(0.01)
        watching._check_living(ranks, time.monotonic(), PATIENCE_S)
        os.kill(ranks[0].process.pid, signal.SIGCONT)
        assert watch(ranks, ignore, PATIENCE_S) == {}


def test_a_cause_that_shows_after_its_consequence_is_waited_for(tmp_path: Path) -> None:
    """Rank 0 lost rank 1, whose own error is heard only half a second later."""
    lost = f"{says(failed='rank 0 lost the others', status=5, lost=True)}; exit 5"
    own = f"sleep 0.5; {says(failed='out of ideas', status=1, lost=False)}; {SLEEP}"
    with (
        acting(tmp_path, lost, own) as ranks,
        pytest.raises(LaunchError, check=names("rank 1", "out of ideas")),
    ):
        watch(ranks, ignore, PATIENCE_S)


def test_a_rank_that_fails_is_heard_though_its_process_does_not_end(tmp_path: Path) -> None:
    """Its groups may keep it: nobody waits for that."""
    own = f"{says(failed='no way', status=1, lost=False)}; {SLEEP}"
    with (
        acting(tmp_path, SLEEP, own) as ranks,
        pytest.raises(LaunchError, check=names("rank 1", "no way")),
    ):
        watch(ranks, ignore, PATIENCE_S)


def test_rank_0_that_ends_without_a_result_is_an_error(tmp_path: Path) -> None:
    with (
        acting(tmp_path, says(step=1), SLEEP) as ranks,
        pytest.raises(LaunchError, check=names("rank 0")),
    ):
        watch(ranks, ignore, PATIENCE_S)


def test_time_for_which_the_parent_stood_still_is_not_the_ranks_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a terminal's Ctrl-Z, say, for an hour, which its report takes here."""
    script = f"{says(step=1)}; sleep 0.3; {says(result={})}"
    clock, passed_s = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(passed_s))
    with acting(tmp_path, script, SLEEP) as ranks:
        assert watch(ranks, lambda _: passed_s.append(3600.0), PATIENCE_S) == {}


def test_ranks_that_do_not_end_when_asked_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.launching.rank_processes.GRACE_S", 0.2)
    deaf = f"trap '' TERM; {says(step=0)}; while true; do sleep 0.05; done"
    with acting(tmp_path, deaf) as ranks:
        assert ranks[0].listen() == [{"step": 0}]
        end(ranks, finished=False)
        assert ranks[0].process.returncode == -signal.SIGKILL


def test_a_rank_that_is_asked_to_end_has_time_to_tidy_up(tmp_path: Path) -> None:
    tidy = f"trap 'sleep 0.1; exit 7' TERM; {says(step=0)}; while true; do sleep 0.01; done"
    with acting(tmp_path, tidy) as ranks:
        assert ranks[0].listen() == [{"step": 0}]
        end(ranks, finished=False)
        assert ranks[0].process.returncode == 7


def test_ranks_that_are_finished_are_let_go(tmp_path: Path) -> None:
    with acting(tmp_path, "sleep 0.3; exit 0") as ranks:
        end(ranks, finished=True)
        assert ranks[0].process.returncode == 0


def test_a_rank_0_that_says_no_more_and_lives_on_is_not_waited_for(tmp_path: Path) -> None:
    """Its messages have ended, but its process hangs in what it takes down."""
    with acting(tmp_path, f"{says(step=1)}; {SLEEP} > /dev/null") as ranks:
        assert ranks[0].listen() == [{"step": 1}]
        with pytest.raises(LaunchError, check=names("1 s", "--timeout", "rank 0", "step 1")):
            watch(ranks, ignore, 1.0)


def test_a_rank_that_outlives_a_kill_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that waits for a disk or a driver in the kernel."""
    monkeypatch.setattr("executor.launching.rank_processes.GRACE_S", 0.1)
    with acting(
        tmp_path, f"trap '' TERM; {says(step=0)}; while true; do sleep 0.05; done"
    ) as ranks:
        assert ranks[0].listen() == [{"step": 0}]
        monkeypatch.setattr(ranks[0].process, "kill", lambda: None)
        end(ranks, finished=False)
        assert ranks[0].process.poll() is None
        monkeypatch.undo()


def only_the_signal(error: BaseException) -> bool:
    return names("rank 1", "SIGKILL")(error) and "UserWarning" not in str(error)


def test_a_killed_rank_is_not_explained_by_what_stood_on_its_stderr(tmp_path: Path) -> None:
    warns = "echo 'UserWarning: CUDA initialization' >&2; kill -KILL $$"
    with (
        acting(tmp_path, SLEEP, warns) as ranks,
        pytest.raises(LaunchError, check=only_the_signal),
    ):
        watch(ranks, ignore, PATIENCE_S)
