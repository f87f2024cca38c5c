"""Collectives of several operands: each pair gets its own, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.collectives import Pairs, coalesced, issue, payload_bytes
from tests.executor.ranks import on_ranks
from workload.kinds import COLLECTIVES, RING_SHIFT
from workload.op import COMPUTE, STEP, Op

SIZES = (2, 3)
TIMEOUT_S = 5.0  # time enough for two busy ranks to connect


def op(kind: str, stream: str) -> Op:
    return Op("op", kind, ("a", "b"), ("c", "d"), STEP, stream, ("dp",), dtype="fp64")


def both_ways(rank: int, function: Callable[[int, str], Any]) -> list[Any]:
    return [function(rank, stream) for stream in (COMPUTE, "dp")]


def gathered_and_scattered(rank: int, stream: str) -> list[list[float]]:
    group = dist.new_group([0, 1])
    parts = [torch.arange(n, dtype=torch.float64) + 10 * rank for n in SIZES]
    whole = [torch.empty(2 * n, dtype=torch.float64) for n in SIZES]
    back = [torch.empty(n, dtype=torch.float64) for n in SIZES]
    for kind, pairs in (
        ("all_gather", list(zip(parts, whole, strict=True))),
        ("reduce_scatter", list(zip(whole, back, strict=True))),
    ):
        work = issue(op(kind, stream), pairs, group, None)
        sizes = [(source.nbytes, target.nbytes) for source, target in pairs]
        assert payload_bytes(op(kind, stream), sizes) == 8 * 2 * sum(SIZES)
        assert (work is None) == (stream == COMPUTE)
        if work is not None:
            work.wait()
    return [tensor.tolist() for tensor in (*whole, *back)]


@pytest.mark.distributed
def test_each_pair_of_operands_is_gathered_and_scattered_by_itself() -> None:
    whole, parts = [[0, 1, 10, 11], [0, 1, 2, 10, 11, 12]], [[0, 2], [0, 2, 4]]
    assert on_ranks(2, both_ways, gathered_and_scattered) == [[*whole, *parts]] * 2


def together(rank: int, kind: str) -> list[list[float]]:
    """What torch's coalescing of two calls gives."""
    group = dist.new_group([0, 1])
    sizes = {"all_gather": (1, 2), "all_reduce": (1, 1), "reduce_scatter": (2, 1)}[kind]
    parts = [torch.arange(sizes[0] * n, dtype=torch.float64) + 10 * rank for n in SIZES]
    targets = [torch.empty(sizes[1] * n, dtype=torch.float64) for n in SIZES]
    targets = parts if kind == "all_reduce" else targets
    pairs: Pairs = list(zip(parts, targets, strict=True))
    coalesced(op(kind, "dp"), pairs, group).wait()
    return [tensor.tolist() for tensor in targets]


@pytest.mark.distributed
def test_calls_that_torch_takes_together_are_all_performed_and_awaited() -> None:
    gathered = [[0, 1, 10, 11], [0, 1, 2, 10, 11, 12]]
    assert on_ranks(2, together, "all_gather") == gathered
    assert on_ranks(2, together, "all_reduce") == [[10, 12], [10, 12, 14]]
    assert on_ranks(2, together, "reduce_scatter") == [[10, 12], [10, 12, 14]]


def exchanged(rank: int, stream: str) -> list[list[float]]:
    """Rows for each of four ranks, counted through all ranks, sent to their owners."""
    group = dist.new_group(range(4))
    send = torch.arange(16, dtype=torch.float64).view(8, 2) + 100 * rank
    received = torch.empty(4, 2, 2, dtype=torch.float64)
    work = issue(op("all_to_all", stream), [(send, received)], group, None)
    assert payload_bytes(op("all_to_all", stream), [(send.nbytes, received.nbytes)]) == send.nbytes
    if work is not None:
        work.wait()
    return received.view(4, 4).tolist()


@pytest.mark.distributed
def test_each_rank_of_an_all_to_all_gets_its_part_of_everyones_rows() -> None:
    own = [[100 * rank + value for value in range(4)] for rank in range(4)]
    assert on_ranks(4, both_ways, exchanged) == [own] * 2


class Pending:
    """A work that notes whether it was waited for."""

    def __init__(self) -> None:
        self.waited = False

    def wait(self) -> None:
        self.waited = True

    def get_future(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [kind for kind in COLLECTIVES if kind != RING_SHIFT])
@pytest.mark.parametrize("stream", [COMPUTE, "dp"])
def test_every_collective_runs_on_its_communicators_own_stream(
    monkeypatch: pytest.MonkeyPatch, kind: str, stream: str
) -> None:
    # What is not asynchronous runs on the current stream of a GPU.
    work = Pending()

    def call(*_: Any, async_op: bool = False, **__: Any) -> Pending:
        assert async_op
        return work

    for name in ("ALL_GATHER", "REDUCE_SCATTER"):
        monkeypatch.setattr(f"executor.collectives.{name}", call)
    for name in ("all_reduce", "all_to_all_single"):
        monkeypatch.setattr(dist, name, call)
    pair = (torch.zeros(4), torch.zeros(4))
    group: Any = None
    issued = issue(op(kind, stream), [pair], group, None)
    assert work.waited == (stream == COMPUTE)
    assert issued is (None if stream == COMPUTE else work)


def alone(rank: int) -> bool:
    """Whether rank 0 gives up because of the time, while rank 1 is alive and stays away."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    if rank == 0:
        pairs = [(torch.zeros(n), torch.zeros(2 * n)) for n in SIZES]
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            issue(op("all_gather", COMPUTE), pairs, group, None)
    return rank == 0


def alone_in_a_ring(rank: int) -> bool:
    """Whether it gives up an exchange with the neighbours in a ring, too."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    if rank == 0:
        issued = issue(op(RING_SHIFT, "cp"), [(torch.zeros(4), torch.zeros(4))], group, None)
        assert issued is not None
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            issued.wait()
    return rank == 0


@pytest.mark.distributed
@pytest.mark.slow
def test_an_exchange_in_a_ring_times_out_too() -> None:
    assert on_ranks(2, alone_in_a_ring)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_collective_of_several_operands_times_out_as_one_does() -> None:
    assert on_ranks(2, alone)
