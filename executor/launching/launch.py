"""Starting ranks on this machine: one process each, watched, and stopped together."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from executor.errors import DivergedError, LaunchError
from executor.launching.rank_processes import RankProcess, end, start
from executor.launching.stopping import passed_on
from executor.launching.task_specs import Job, Report, task_line
from executor.launching.watch import watch

RANKS_PER_CORE = 16


def require_torch() -> None:
    """Refuse to go on without torch, saying how to get it."""
    if importlib.util.find_spec("torch") is None:
        raise LaunchError("torch is not installed; `pip install 'simgpt[run]'` brings it")


def check_ranks(ranks: int) -> None:
    """Refuse to start more ranks than this machine's cores can take turns at."""
    cores = os.cpu_count() or 1
    if ranks > RANKS_PER_CORE * cores:
        raise LaunchError(
            f"{ranks} ranks are too many to start on this machine; its {cores} cores take "
            f"{RANKS_PER_CORE * cores} at most"
        )


def launch_training(job: Job) -> dict[str, Any]:
    """Start a training run's ranks and return its result, unwatched step by step.

    Raises what `launch` does, and a DivergedError where the run ended at a loss that is not finite.
    """
    ranks = job.plan.grid.ranks
    result = launch(
        "train", task_line(job), ranks=ranks, report=lambda _: None, timeout_s=job.timeout_s
    )
    lost_at = result["diverged_at_step"]
    if lost_at is not None:
        raise DivergedError(f"{job.gpt.name} with {job.plan} lost its loss in step {lost_at}")
    return result


def launch(
    task: str,
    description: str,
    *,
    ranks: int,
    report: Report,
    timeout_s: float,
    on_interrupt: Callable[[], None] | None = None,
    held: Sequence[int] = (),
) -> dict[str, Any]:
    """Start `ranks` workers on a task, pass rank 0's messages to `report`, return its result.

    They meet through a file in a private folder, so that nothing listens on the network. When a
    rank dies, is frozen, or says nothing for `timeout_s`, all are stopped and a LaunchError says
    which one it was and why; a PlanCannotRunError where it says that its plan does not fit. With
    `on_interrupt`, Ctrl-C ends a run that trains at a step of all ranks, which is its result, and
    calls that; without it, or the second time, it is a KeyboardInterrupt. Descriptors that are
    `held` stay open in the ranks: a lock is then theirs too.
    """
    require_torch()
    check_ranks(ranks)
    started: list[RankProcess] = []
    with ExitStack() as stack:
        finished = False
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="simgpt-")))
            stack.callback(lambda: end(started, finished=finished))
            for rank in range(ranks):
                started.append(start(task, description, rank, ranks, folder, held))
            if on_interrupt is not None:
                stack.enter_context(passed_on(started, on_interrupt))
        except OSError as error:
            raise LaunchError(f"{ranks} rank(s) cannot be started here: {error}") from None
        result = watch(started, report, timeout_s)
        finished = True
        return result
