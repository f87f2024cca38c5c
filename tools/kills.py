"""Ranks killed at random moments, and whether what goes on is the same run to the bit.

Run with `python -m tools.kills [--kills N] [--ranks 2|4]`, N for 2 ranks and again for 4. A run
saves every 2 steps; SIGKILL hits one of its ranks, or all, at a random moment from its start to
some steps later, and the next run resumes. Of every step that any of them took the loss must equal
that of an uninterrupted run in all 64 bits of its JSON number, and of the checkpoints none may be
lost or damaged but the one that was being written. `in a save` counts kills that left a draft.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

import click

from executor.checkpoints.folder import SAVING, name_of, steps_in
from executor.checkpoints.reading import problem_of
from executor.checkpoints.saving import Saving
from executor.errors import LaunchError
from executor.launching import launch as launching
from executor.launching.rank_processes import RankProcess, start
from executor.launching.task_specs import Job, task_line
from workload.gpt import find_model
from workload.plan_text import parse_plan

KILLS = 50
LIVES = 10  # of one run: then another begins afresh
EVERY = 2
STEPS = 400  # more than the lives of one run reach
PATIENCE_S = 120.0
AT_START = 0.2  # of the kills come before the first step, at most so many seconds after the start
START_S, MOMENT_S = 8.0, 4.0
PLANS = {2: "dp=2,zero=1,precision=fp32", 4: "tp=2,dp=2,zero=1,precision=fp32"}


class Killer:
    """Sends SIGKILL to one rank of a job or to all, at a moment drawn beforehand."""

    def __init__(self, draw: random.Random) -> None:
        self._ranks: list[RankProcess] = []
        self._all, self._victim = draw.random() < 1 / 3, draw.random()
        self._at_start = draw.random() < AT_START
        self._delay_s = draw.random() * (START_S if self._at_start else MOMENT_S)
        self.losses: dict[int, float] = {}

    def start(self, *how: Any) -> RankProcess:
        """Start a rank, as `launch` does."""
        self._ranks.append(start(*how))
        if self._at_start and len(self._ranks) == 1:
            self._set()
        return self._ranks[-1]

    def report(self, message: dict[str, Any]) -> None:
        """Keep a step's loss; from the first one on the time runs."""
        if "step" in message:
            if not self.losses and not self._at_start:
                self._set()
            self.losses[message["step"]] = message["loss"]

    def _set(self) -> None:
        timer = Timer(self._delay_s, self._kill)
        timer.daemon = True
        timer.start()

    def _kill(self) -> None:
        chosen = self._ranks
        if not self._all:
            chosen = [self._ranks[int(self._victim * len(self._ranks))]]
        for each in chosen:
            os.kill(each.process.pid, signal.SIGKILL)


def job_of(plan: str, folder: Path | None, steps: int = STEPS) -> Job:
    """A run that saves into a folder, and goes on from what is there."""
    saving = None
    if folder is not None:
        saving = Saving(folder=str(folder), every_steps=EVERY, resume=True, owned=True)
    built = parse_plan(plan, batch=8)
    return Job(gpt=find_model("tiny-2m"), plan=built, steps=steps, device="cpu", saving=saving)


def losses_of(job: Job, killer: Killer) -> dict[int, float]:
    """The losses of a run by step, until it is killed."""
    ranks = job.plan.grid.ranks
    try:
        with patch.object(launching, "start", killer.start):
            how: dict[str, Any] = {"report": killer.report, "timeout_s": PATIENCE_S}
            launching.launch("train", task_line(job), ranks=ranks, **how)
    except LaunchError as error:
        if "SIGKILL" not in str(error):
            raise
    return killer.losses


def check_folder(folder: Path, reached: int) -> bool:
    """Whether a kill left a draft, once all that was said to be saved was found whole."""
    steps = steps_in(folder)
    begun = (reached - 1) // EVERY * EVERY  # whose predecessor was through
    assert not reached or max(steps, default=0) >= begun - EVERY, f"{steps} after {reached}"
    for step in steps:
        assert problem_of(folder / name_of(step), 0, 1) is None, step
    return folder.exists() and any(each.name.startswith(SAVING) for each in folder.iterdir())


def lives_of(
    plan: str, kills: int, draw: random.Random
) -> tuple[list[dict[int, float]], Counter[str]]:
    """What each life of one run took for losses, and what its kills met."""
    met: Counter[str] = Counter()
    lives = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        for _ in range(kills):
            newest = max(steps_in(folder), default=0)
            losses = losses_of(job_of(plan, folder), Killer(draw))
            assert not losses or min(losses) == newest + 1, f"{min(losses)} after {newest}"
            lives.append(losses)
            met["before a step"] += not losses
            met["resumed"] += bool(losses and newest)
            met["in a save"] += check_folder(folder, max(losses, default=0))
    return lives, met


def compare(plan: str, lives: Sequence[dict[int, float]]) -> int:
    """How many steps were compared with an uninterrupted run's, all of which are equal."""
    last = max((max(losses, default=0) for losses in lives), default=0)
    whole: dict[int, float] = {}

    def report(message: dict[str, Any]) -> None:
        whole[message["step"]] = message["loss"]

    job = job_of(plan, None, max(last, 1))
    how: dict[str, Any] = {"report": report, "timeout_s": PATIENCE_S}
    launching.launch("train", task_line(job), ranks=job.plan.grid.ranks, **how)
    for losses in lives:
        for step, loss in losses.items():
            assert loss == whole[step], f"step {step}: {loss!r}, not {whole[step]!r}"
    return sum(map(len, lives))


@click.command()
@click.option("--kills", default=KILLS, show_default=True, help="How many for each plan.")
@click.option("--ranks", type=click.Choice([*map(str, PLANS)]), help="On so many alone.")
def main(kills: int, ranks: str | None) -> None:
    """Kill ranks of a run, resume it and compare, and print a row for each plan."""
    plans = [PLANS[int(ranks)]] if ranks else list(PLANS.values())
    print(
        "plan                               kills  resumed  before a step  in a save  steps equal"
    )
    for plan in plans:
        draw, met, lives = random.Random(plan), Counter[str](), list[dict[int, float]]()
        began_s = time.monotonic()
        for first in range(0, kills, LIVES):
            some, found = lives_of(plan, min(LIVES, kills - first), draw)
            met, lives = met + found, lives + some
            took_s = time.monotonic() - began_s
            print(f"  {first + len(some)} kills in {took_s:.0f} s", file=sys.stderr, flush=True)
        counts = [kills, met["resumed"], met["before a step"], met["in a save"]]
        equal = compare(plan, lives)
        print(
            f"{plan:34s} {'{:>6d} {:>8d} {:>14d} {:>10d}'.format(*counts)} {equal:>12d}", flush=True
        )


if __name__ == "__main__":
    main()
