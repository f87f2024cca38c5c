"""Ranks are watched: whichever way one ends, all end, and the sentence says which and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executor.errors import LaunchError
from executor.launching.launch import launch
from executor.launching.task_specs import Job, task_line
from tests.executor.forked_ranks import ForkedRank, forked, running
from tests.messages import assert_names, names
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.plan_text import parse_plan

pytestmark = pytest.mark.distributed

WITHOUT_END = 1_000_000
PATIENCE_S = 600.0  # on a machine where starting Python takes a minute, too
JOB = Job(
    gpt=find_model("tiny-30k"),
    plan=parse_plan("dp=2", batch=4),
    steps=WITHOUT_END,
    device="cpu",
)


def ignore(_: dict[str, Any]) -> None:
    return


def children() -> dict[int, int]:
    """Process ids of this process's workers, by rank."""
    found: dict[int, int] = {}
    for process in _workers_of(os.getpid()):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if b"executor.worker" in words:
            found[int(words[words.index(b"executor.worker") + 2])] = process
    return found


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("is_forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_run_and_is_named(is_forked: bool, victim: int) -> None:
    seen: list[int] = []

    def kill(message: dict[str, Any]) -> None:
        if message["step"] == 2:
            ranks = running() if is_forked else children()
            seen.extend(ranks.values())
            os.kill(ranks[victim], signal.SIGKILL)

    start = forked() if is_forked else nullcontext()
    with start, pytest.raises(LaunchError, check=names(f"rank {victim}", "SIGKILL")):
        launch("train", task_line(JOB), ranks=2, report=kill, timeout_s=PATIENCE_S)
    assert len(seen) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in seen)


def test_a_frozen_rank_ends_the_run_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.launching.watch.STOPPED_S", 0.5)
    seen: list[int] = []

    def stop(message: dict[str, Any]) -> None:
        if message["step"] == 2:
            seen.extend(running().values())
            os.kill(running()[1], signal.SIGSTOP)

    with forked(), pytest.raises(LaunchError, check=names("rank 1", "SIGSTOP")):
        launch("train", task_line(JOB), ranks=2, report=stop, timeout_s=PATIENCE_S)
    assert len(seen) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in seen)


# What Python runs before anything else: rank 1 fails in step 3, while rank 0 is in a collective.
FAILING = """
import sys
if sys.orig_argv[-4:-1] == ["train", "1", "2"]:
    import executor.job
    draw = executor.job.batch_of
    def batch_of(text, gpt, batch, step, seed):
        if step == 2:
            raise RuntimeError("CUDA error: made up\\nCompile with `TORCH_USE_CUDA_DSA`")
        return draw(text, gpt, batch, step, seed)
    executor.job.batch_of = batch_of
"""


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_others_that_wait_for_it_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    steps: list[int] = []

    def note(message: dict[str, Any]) -> None:
        steps.append(message["step"])

    with pytest.raises(LaunchError) as error:
        launch("train", task_line(JOB), ranks=2, report=note, timeout_s=PATIENCE_S)
    assert_names(str(error.value), "rank 1", "RuntimeError: CUDA error: made up")
    assert steps == [1, 2]


@dataclass
class Interrupted:
    """Processes of ranks whose report raised, where they listened, and which of them were left."""

    processes: list[int] = field(default_factory=list)
    listening: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def interrupted() -> Interrupted:
    """One run for two tests."""
    seen = Interrupted()

    def look(message: dict[str, Any]) -> None:
        if message["step"] == 2:
            seen.processes = list(running().values())
            seen.listening = [each for process in seen.processes for each in _listening(process)]
            raise KeyboardInterrupt

    with forked(), pytest.raises(KeyboardInterrupt):
        launch("train", task_line(JOB), ranks=2, report=look, timeout_s=PATIENCE_S)
    seen.left = [each for each in seen.processes if Path(f"/proc/{each}").exists()]
    return seen


def test_a_forked_rank_that_is_gone_before_its_end_is_known_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE_S)
    rank = object.__new__(ForkedRank)
    monkeypatch.setattr(ForkedRank, "pid", gone.pid)
    monkeypatch.setattr(ForkedRank, "returncode", None)
    rank.terminate()
    rank.kill()


def test_ranks_of_one_machine_listen_on_its_loopback_alone(interrupted: Interrupted) -> None:
    assert interrupted.listening
    assert set(interrupted.listening) <= {"0100007F", f"{'0' * 24}01000000"}


def _listening(process: int) -> list[str]:
    """Addresses of a process's listening TCP sockets, as proc(5) writes them: 127.0.0.1, ::1."""
    files = list(Path(f"/proc/{process}/fd").iterdir())
    names = {os.readlink(file) for file in files if os.path.lexists(file)}
    tables = [Path(f"/proc/{process}/net/{name}") for name in ("tcp", "tcp6")]
    rows = [
        line.split()
        for table in tables
        if table.exists()
        for line in table.read_text().splitlines()[1:]
    ]
    return [
        row[1].partition(":")[0] for row in rows if f"socket:[{row[9]}]" in names and row[3] == "0A"
    ]


def test_a_rank_that_fails_at_its_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    job = Job(gpt=JOB.gpt, plan=JOB.plan, steps=1, device="cpu", text=str(tmp_path / "missing"))
    with forked(), pytest.raises(LaunchError, check=names("rank", str(tmp_path / "missing"))):
        launch("train", task_line(job), ranks=2, report=ignore, timeout_s=PATIENCE_S)


def test_a_plan_that_no_machine_holds_is_refused_before_it_runs() -> None:
    gpt = GPT.of(name="huge", layers=8, hidden=2**17, heads=8, ffn=8, sequence=16, vocab=256)
    job = Job(gpt=gpt, plan=parse_plan("dp=1", batch=1), steps=1, device="cpu")
    with forked(), pytest.raises(PlanCannotRunError, check=names("huge", "TiB", "1 rank")):
        launch("train", task_line(job), ranks=1, report=ignore, timeout_s=PATIENCE_S)


def test_a_report_that_raises_leaves_no_rank_behind(interrupted: Interrupted) -> None:
    assert len(interrupted.processes) == 2
    assert interrupted.left == []


@pytest.fixture
def endless(ranks: int, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that trains until it is stopped, once its first step is done; what it keeps for
    the time of the run lies in `tmp_path`."""
    words = f"run tiny-30k --no-predict --plan dp={ranks} --batch 4".split()
    command = subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words, "--steps", f"{WITHOUT_END}", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
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
    ("ranks", "how", "status", "named"),
    [
        (1, signal.SIGTERM, 143, "SIGTERM"),
        pytest.param(2, signal.SIGTERM, 143, "SIGTERM", marks=pytest.mark.slow),
        pytest.param(2, signal.SIGINT, 130, "simgpt", marks=pytest.mark.slow),
        pytest.param(2, signal.SIGUSR1, 138, "SIGUSR1", marks=pytest.mark.slow),
        pytest.param(2, signal.SIGHUP, 129, "SIGHUP", marks=pytest.mark.slow),
        pytest.param(2, signal.SIGKILL, -signal.SIGKILL, "", marks=pytest.mark.slow),
    ],
)
def test_ranks_and_their_files_go_with_the_command_that_started_them(
    *,
    ranks: int,
    how: signal.Signals,
    status: int,
    named: str,
    endless: subprocess.Popen[str],
    tmp_path: Path,
) -> None:
    workers = _workers_of(endless.pid)
    assert len(workers) == ranks
    assert len(list(tmp_path.iterdir())) == 1
    endless.send_signal(how)
    _, err = endless.communicate(timeout=PATIENCE_S)
    assert endless.returncode == status
    assert_names(err.strip().rpartition("\n")[2], named)
    assert (err != "") == bool(named)
    assert "Traceback" not in err
    deadline = time.monotonic() + PATIENCE_S / 10
    while any(map(_runs, workers)) or list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "a rank outlives its parent, or its files do"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_rank_that_computes_ends_when_nobody_holds_its_stdin_any_more(tmp_path: Path) -> None:
    """Its answers go where they are always taken, so that only stdin tells it of its parent's end.

    A parent that is killed lets go of it, whatever else it held.
    """
    folder, answers = tmp_path / "folder", tmp_path / "answers"
    folder.mkdir()
    job = Job(gpt=JOB.gpt, plan=parse_plan("dp=1", batch=1), steps=WITHOUT_END, device="cpu")
    with answers.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", "executor.worker", "train", "0", "1", str(folder)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    try:
        assert worker.stdin is not None
        worker.stdin.write(f"{task_line(job)}\n".encode())
        worker.stdin.flush()
        while answers.read_bytes().count(b"\n") < 2:
            assert worker.poll() is None
            time.sleep(0.1)
        *whole, _ = answers.read_text().split("\n")
        assert [json.loads(line)["step"] for line in whole][:2] == [1, 2]
        worker.stdin.close()
        assert worker.wait(timeout=PATIENCE_S / 10) == LaunchError.exit_code
        assert not folder.exists()
    finally:
        worker.kill()
        worker.wait()


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_says_only_messages_on_stdout() -> None:
    job = Job(gpt=JOB.gpt, plan=parse_plan("dp=1", batch=2), steps=2, device="cpu")
    messages: list[dict[str, Any]] = []
    with forked():
        result = launch(
            "train", task_line(job), ranks=1, report=messages.append, timeout_s=PATIENCE_S
        )
    assert [message["step"] for message in messages] == [1, 2]
    assert json.loads(json.dumps(result))["losses"] == [m["loss"] for m in messages]


def test_ranks_for_which_there_is_no_folder_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(LaunchError, check=names("2 rank", "/nowhere")):
        launch("train", task_line(JOB), ranks=2, report=ignore, timeout_s=PATIENCE_S)
