"""Collectives of several operands: each pair gets its own, and nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.collectives import issue, payload_bytes
from executor.place import Place
from executor.tasks import AdamW
from tests.executor.ranks import on_ranks
from workload.grid import Grid
from workload.op import COMPUTE, Op

SIZES = (2, 3)
TIMEOUT_S = 5.0  # time enough for two busy ranks to connect


def op(kind: str, stream: str) -> Op:
    return Op("op", kind, ("a", "b"), ("c", "d"), "step", stream, ("data",), dtype="fp64")


def place(rank: int) -> Place:
    return Place(grid=Grid(data=2), rank=rank, device=torch.device("cpu"), adamw=AdamW())


def both_ways(rank: int, function: Callable[[int, str], Any]) -> list[Any]:
    return [function(rank, stream) for stream in (COMPUTE, "data")]


def gathered_and_scattered(rank: int, stream: str) -> list[list[float]]:
    group = dist.new_group([0, 1])
    parts = [torch.arange(n, dtype=torch.float64) + 10 * rank for n in SIZES]
    whole = [torch.empty(2 * n, dtype=torch.float64) for n in SIZES]
    back = [torch.empty(n, dtype=torch.float64) for n in SIZES]
    for kind, pairs in (
        ("all_gather", list(zip(parts, whole, strict=True))),
        ("reduce_scatter", list(zip(whole, back, strict=True))),
    ):
        work = issue(op(kind, stream), pairs, group, place(rank))
        assert payload_bytes(op(kind, stream), pairs) == 8 * 2 * sum(SIZES)
        assert (work is None) == (stream == COMPUTE)
        if work is not None:
            work.wait()
    return [tensor.tolist() for tensor in (*whole, *back)]


@pytest.mark.distributed
def test_each_pair_of_operands_is_gathered_and_scattered_by_itself() -> None:
    whole, parts = [[0, 1, 10, 11], [0, 1, 2, 10, 11, 12]], [[0, 2], [0, 2, 4]]
    assert on_ranks(2, both_ways, gathered_and_scattered) == [[*whole, *parts]] * 2


def alone(rank: int) -> float:
    """The seconds after which rank 0 gives up, as rank 1 stays away."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    if rank == 1:
        time.sleep(2 * TIMEOUT_S)
        return 0.0
    pairs = [(torch.zeros(n), torch.zeros(2 * n)) for n in SIZES]
    begun = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"(?i)time"):
        issue(op("all_gather", COMPUTE), pairs, group, place(rank))
    return time.perf_counter() - begun


@pytest.mark.distributed
@pytest.mark.slow
def test_a_collective_of_several_operands_times_out_as_one_does() -> None:
    assert TIMEOUT_S / 2 < on_ranks(2, alone) < 2 * TIMEOUT_S
