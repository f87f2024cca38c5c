"""Starting ranks on this machine: one process each, watched, and stopped together."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from executor.errors import LaunchError
from executor.ranks import RankProcess, end, start
from executor.watch import Report, watch

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


def launch(
    task: str, description: str, *, ranks: int, report: Report, timeout_s: float
) -> dict[str, Any]:
    """Start `ranks` workers on a task, pass rank 0's messages to `report`, return its result.

    They meet through a file in a private folder, so that nothing listens on the network. When a
    rank dies, is frozen, or says nothing for `timeout_s`, all are stopped and a LaunchError says
    which one it was and why.
    """
    require_torch()
    check_ranks(ranks)
    started: list[RankProcess] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="simgpt-")))
        finished = False
        stack.callback(lambda: end(started, finished=finished))
        for rank in range(ranks):
            started.append(start(task, description, rank, ranks, folder))
        result = watch(started, report, timeout_s)
        finished = True
        return result
