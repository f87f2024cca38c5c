"""`torchrun --max-restarts … -m simgpt run`: a killed rank, and the same losses after."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints.folder import steps_in

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STEPS, TIMEOUT_S = 120, 240.0
RUN = (
    "run",
    "tiny-30k",
    "--no-predict",
    "--batch",
    "8",
    "--steps",
    str(STEPS),
    "--device",
    "cpu",
    "--json",
)
# Each rank leaves its number of process, by its rank and the attempt it is of.
PIDS = """
import os
rank, attempt = (os.environ.get(key) for key in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
if rank is not None:
    with open(os.path.join({folder!r}, f"pid-{{rank}}-{{attempt}}"), "w") as file:
        file.write(str(os.getpid()))
"""


def losses_of(path: Path) -> list[float]:
    losses: list[float] = json.loads(path.read_text(encoding="utf-8"))["losses"]
    return losses


def started(words: tuple[str, ...], folder: Path, **about: Any) -> subprocess.Popen[str]:
    (folder / "sitecustomize.py").write_text(PIDS.format(folder=str(folder)), encoding="utf-8")
    path = os.pathsep.join([str(folder), os.getcwd()])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **about,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it said on stderr; nothing of it runs any more."""
    try:
        said = process.communicate(timeout=TIMEOUT_S)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, said
    return said


def kill_once_saved(folder: Path, name: str, process: subprocess.Popen[str]) -> int:
    """Kill a rank, by its file, once the run has two checkpoints; returns the newest's step."""
    until = time.monotonic() + TIMEOUT_S
    while len(steps_in(folder / "run")) < 2:
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    os.kill(int((folder / name).read_text()), signal.SIGKILL)
    return steps_in(folder / "run")[0]


@pytest.mark.parametrize(
    ("plan", "ranks"), [("dp=2,zero=1,precision=fp64", 2), ("cp=2,dp=2,precision=bf16", 4)]
)
def test_a_rank_that_is_killed_under_torchrun_costs_no_more_than_the_steps_since_the_last_save(
    plan: str, ranks: int, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    split = ("--plan", plan, "--timeout", "60")
    ended(started(("simgpt", *RUN, *split, "-o", str(whole)), tmp_path))
    launch = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    log = tmp_path / "steps.jsonl"
    saves = ["--save", str(tmp_path / "run"), "--save-every", "2", "-o", str(parts)]
    saves += ["--log-file", str(log)]
    run = (*launch, "--max-restarts", "2", "-m", "simgpt", *RUN, *split, *saves)
    process = started(run, tmp_path)
    newest = kill_once_saved(tmp_path, "pid-1-0", process)
    said = ended(process)
    found = re.search(r"resumed at step (\d+)", said)
    assert found is not None, said
    resumed = int(found[1])
    assert newest <= resumed < STEPS
    assert (tmp_path / "pid-1-1").exists()
    assert losses_of(parts) == losses_of(whole)[resumed:]
    assert steps_in(tmp_path / "run")[0] == STEPS
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    assert [line["loss"] for line in lines] == losses_of(whole)
