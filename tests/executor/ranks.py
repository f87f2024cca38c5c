"""Real ranks for tests: a function run by several processes that are joined over gloo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_S = 60.0


def on_ranks(count: int, function: Callable[..., Any], *args: Any) -> Any:
    """What `function(rank, *args)` returns on rank 0, run by `count` ranks at once."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(count, folder, function, args), nprocs=count)
        return torch.load(Path(folder) / "answer", weights_only=True)


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
    answer = function(rank, *args)
    if rank == 0:
        torch.save(answer, Path(folder) / "answer")
    dist.barrier()
    dist.destroy_process_group()
