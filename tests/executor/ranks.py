"""Real ranks for tests: a function run by several processes that are joined over gloo."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from topologies.session import Session

TIMEOUT_S = 60.0
CASES_AT_ONCE = 5
# Ranks are forked from one server that has imported torch already: importing it takes each of
# them longer than most tests.
PRELOADED = ["torch._dynamo", "cattrs", "executor.job", "executor.worker"]
PRELOADED += [f"tests.executor.{name}" for name in ("precision", "resumed")]
PRELOADED += [f"tests.executor.test_parity{name}" for name in ("", "_layer", "_recipes", "_rules")]
multiprocessing.set_forkserver_preload(PRELOADED)


def on_ranks(count: int, function: Callable[..., Any], *args: Any) -> Any:
    """What `function(rank, *args)` returns on rank 0, run by `count` ranks at once."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = (count, folder, function, args)
        start_processes(_rank, ranks, nprocs=count, start_method="forkserver")  # type: ignore[no-untyped-call]
        return torch.load(Path(folder) / "answer", weights_only=True)


def on_ranks_in_turn(
    count: int, function: Callable[..., list[Any]], cases: Sequence[Any], *args: Any
) -> list[Any]:
    """What `function(rank, cases, *args)` returns for all cases, a few at a time on new ranks.

    Gloo has threads for each group of ranks, and those of hundreds of groups take most of the time.
    """
    starts = range(0, len(cases), CASES_AT_ONCE)
    chunks = (cases[start : start + CASES_AT_ONCE] for start in starts)
    return [each for chunk in chunks for each in on_ranks(count, function, chunk, *args)]


def _rank(
    rank: int, count: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    with Session():
        answer = function(rank, *args)
    if rank == 0:
        torch.save(answer, Path(folder) / "answer")
    dist.barrier()
    dist.destroy_process_group()
