"""Sweeps killed at random moments, and whether what goes on gives the same rows to the byte.

Run with `python -m tools.sweep_kills [--kills N] [--seed N]`. SIGKILL hits a worker of a sweep of
60 rows, its parent, or both at once, at a random moment from its start on; the same command then
goes on with the folder. Once a sweep is through its rows must equal those of one that nobody
killed, and the next begins in another folder. No worker may outlive its parent.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import click

from simgpt.studies.journal import RESULTS

KILLS = 40
VICTIMS = ("worker", "parent", "both")
MOMENT_S = 1.2  # at most from one kill to the next
PATIENCE_S = 120.0
STUDY = """
model = "gpt-10b"
machine = "perlmutter"
batch = 128
[sweep]
devices = [32, 64, 128]
plan.tp = [1, 2, 4, 8]
plan.pp = [1, 2, 4, 8, 16]
"""


def begin(study: Path, folder: Path) -> subprocess.Popen[bytes]:
    """A sweep by two workers into a folder."""
    words = ["sweep", str(study), "-o", str(folder), "--workers", "2", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words],
        env={**os.environ, "SIMGPT_CACHE": str(study.parent / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def workers_of(sweep: subprocess.Popen[bytes]) -> list[int]:
    """The worker processes of a sweep, starting ones too."""
    with suppress(OSError):
        children = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text(encoding="utf-8")
        return [pid for pid in map(int, children.split()) if is_worker(pid)]
    return []


def is_worker(pid: int) -> bool:
    """Whether a process is there and is a worker of a pool; a zombie has no command."""
    with suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def kill(sweep: subprocess.Popen[bytes], victim: str, draw: random.Random) -> bool:
    """Send SIGKILL to whom it is meant for; whether they were there."""
    workers = workers_of(sweep)
    if sweep.poll() is not None or (victim != "parent" and not workers):
        return False
    if victim != "parent":
        with suppress(ProcessLookupError):
            os.kill(draw.choice(workers), signal.SIGKILL)
    if victim != "worker":
        sweep.kill()
        sweep.wait(PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while victim != "worker" and any(map(is_worker, workers)):
        assert time.monotonic() < end, "workers outlive their sweep"
        time.sleep(0.01)
    return True


def life(study: Path, folder: Path, kills: int, draw: random.Random) -> Counter[str]:
    """Kill a sweep again and again until it is through: at most so many times."""
    met: Counter[str] = Counter()
    while True:
        before = rows_in(folder)
        sweep = begin(study, folder)
        met["resumed"] += before > 0
        while sweep.poll() is None and sum(met[each] for each in VICTIMS) < kills:
            with suppress(subprocess.TimeoutExpired):
                sweep.wait(draw.random() * MOMENT_S)
            victim = draw.choice(VICTIMS)
            met[victim] += kill(sweep, victim, draw)
        status = sweep.wait(PATIENCE_S)
        if status == 0:
            return met
        assert status == -signal.SIGKILL, f"status {status}"
        assert rows_in(folder) >= before, "rows were lost"


def rows_in(folder: Path) -> int:
    """The whole rows that are in a folder."""
    results = folder / RESULTS
    return results.read_bytes().count(b"\n") if results.exists() else 0


@click.command()
@click.option("--kills", default=KILLS, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the moments and the victims.")
def main(kills: int, seed: int) -> None:
    """Kill sweeps and their workers, go on, and compare the rows."""
    met, draw, sweeps = Counter[str](), random.Random(seed), 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        study = Path(name) / "study.toml"
        study.write_text(STUDY, encoding="utf-8")
        assert begin(study, Path(name) / "whole").wait(PATIENCE_S) == 0
        whole = (Path(name) / "whole" / RESULTS).read_bytes()
        while (killed := sum(met[each] for each in VICTIMS)) < kills:
            folder = Path(name) / f"killed-{sweeps}"
            met += life(study, folder, kills - killed, draw)
            assert (folder / RESULTS).read_bytes() == whole, f"other rows in sweep {sweeps}"
            sweeps += 1
    rows, took_s = whole.count(b"\n"), time.monotonic() - began_s
    counts = f"{met['worker']} of a worker, {met['parent']} of a parent, {met['both']} of both"
    print(
        f"{killed} kills ({counts}) of {sweeps} sweeps in {took_s:.0f} s, {met['resumed']} times "
        f"resumed with rows: all {rows} rows of each are equal to the byte"
    )


if __name__ == "__main__":
    main()
