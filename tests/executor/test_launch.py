"""Ranks are watched: whichever way one ends, all end, and the sentence says which and why."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.errors import LaunchError
from executor.launch import launch
from executor.tasks import Job
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.plan_text import parse_plan

pytestmark = pytest.mark.distributed

WITHOUT_END = 1_000_000
JOB = Job(gpt=find_model("tiny-30k"), plan=parse_plan("data=2", batch=4), steps=WITHOUT_END)


def ignore(_: dict[str, Any]) -> None:
    return


def children() -> dict[int, int]:
    """Process ids of this process's workers, by rank."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found |= _worker(entry)
    return found


def _worker(entry: Path) -> dict[int, int]:
    try:
        parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        words = (entry / "environ").read_bytes().split(b"\0")
        command = (entry / "cmdline").read_bytes()
    except OSError:
        return {}
    if int(parent) != os.getpid() or b"executor.worker" not in command:
        return {}
    return {int(word[5:]): int(entry.name) for word in words if word.startswith(b"RANK=")}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_and_is_named(victim: int) -> None:
    seen: list[int] = []

    def kill(message: dict[str, Any]) -> None:
        if message["step"] == 2:
            seen.extend(children().values())
            os.kill(children()[victim], signal.SIGKILL)

    with pytest.raises(LaunchError, match=f"rank {victim} was killed by SIGKILL"):
        launch("train", JOB.to_json(), ranks=2, report=kill, timeout_s=60)
    assert len(seen) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in seen)


def test_a_rank_that_stops_answering_hits_the_timeout() -> None:
    def stop(message: dict[str, Any]) -> None:
        if message["step"] == 2:
            os.kill(children()[1], signal.SIGSTOP)

    started = time.monotonic()
    with pytest.raises(LaunchError, match=r"no rank made progress within 2 s \(--timeout\)"):
        launch("train", JOB.to_json(), ranks=2, report=stop, timeout_s=2)
    assert time.monotonic() - started < 60


def test_a_rank_that_fails_at_its_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    job = Job(gpt=JOB.gpt, plan=JOB.plan, steps=1, text=str(tmp_path / "missing"))
    with pytest.raises(LaunchError, match=r"rank \d stopped: cannot read the text .*missing"):
        launch("train", job.to_json(), ranks=2, report=ignore, timeout_s=60)


def test_a_plan_that_no_machine_holds_is_refused_before_it_runs() -> None:
    gpt = GPT(name="huge", layers=8, hidden=2**17, heads=8, ffn=8, sequence=16, vocab=256)
    job = Job(gpt=gpt, plan=parse_plan("data=1", batch=1), steps=1)
    with pytest.raises(PlanCannotRunError, match=r"^huge with .* needs [\d.]+ TiB for 1 rank"):
        launch("train", job.to_json(), ranks=1, report=ignore, timeout_s=60)


def test_a_report_that_raises_leaves_no_rank_behind() -> None:
    seen: list[int] = []

    def interrupt(_: dict[str, Any]) -> None:
        seen.extend(children().values())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch("train", JOB.to_json(), ranks=2, report=interrupt, timeout_s=60)
    assert len(seen) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in seen)


@pytest.fixture
def endless() -> Iterator[subprocess.Popen[str]]:
    """A command that trains until it is stopped, once its first step is done."""
    words = f"run tiny-30k --no-predict --plan data=2 --batch 4 --steps {WITHOUT_END}".split()
    command = subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert "step" in command.stdout.readline()
    yield command
    command.kill()
    command.communicate()


def _workers_of(parent: int) -> list[int]:
    return [int(word) for word in _children_file(parent).read_text().split()]


def _children_file(parent: int) -> Path:
    return Path(f"/proc/{parent}/task/{parent}/children")


@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_ranks_end_with_the_command_that_started_them(
    how: signal.Signals, status: int, endless: subprocess.Popen[str]
) -> None:
    workers = _workers_of(endless.pid)
    assert len(workers) == 2
    endless.send_signal(how)
    _, err = endless.communicate(timeout=60)
    assert endless.returncode == status
    assert "Traceback" not in err
    deadline = time.monotonic() + 20
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline, "a rank outlives its parent"
        time.sleep(0.1)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_port_in_use_is_refused_before_a_rank_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} is in use"):
            launch("train", JOB.to_json(), ranks=2, report=ignore, port=port, timeout_s=60)


def test_a_worker_says_only_messages_on_stdout() -> None:
    job = Job(gpt=JOB.gpt, plan=parse_plan("data=1", batch=2), steps=2)
    messages: list[dict[str, Any]] = []
    result = launch("train", job.to_json(), ranks=1, report=messages.append, timeout_s=60)
    assert [message["step"] for message in messages] == [1, 2]
    assert json.loads(json.dumps(result))["losses"] == [m["loss"] for m in messages]
