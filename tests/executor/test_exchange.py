"""All-to-alls of a program, performed by ranks over gloo: who gets what, in which groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.buffer_table import BufferTable
from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.play import play
from executor.prepared import prepare
from executor.rank_context import RankContext
from executor.timing import recorder_for
from tests.executor.ranks import on_ranks
from tests.simulator.worlds import TINY, plan_of
from workload.op import COMPUTE, Buffer, Op
from workload.program import Program

ROWS, WIDTH = 4, 3


def program_of(text: str, *ways: tuple[str, str]) -> Program:
    """An all-to-all over each of some axes, on a stream of its own or on the one that computes,
    each of what the one before received; the last is kept."""
    names = ["sent", *(f"after_{axis}" for axis, _ in ways)]
    buffers = {
        name: Buffer(name, (ROWS, WIDTH), "fp64", "activations", persistent=name == "sent")
        for name in names
    }
    ops = [
        Op(
            f"to_{axis}",
            "all_to_all",
            (before,),
            (after,),
            stream=stream,
            axes=(axis,),
            nbytes=8 * ROWS * WIDTH,
            dtype="fp64",
        )
        for (axis, stream), before, after in zip(ways, names[:-1], names[1:], strict=True)
    ]
    kept = Buffer("kept", (ROWS, WIDTH), "fp64", "activations", persistent=True)
    last = Op("keep", "add", ("kept", names[-1]), ("kept",), dtype="fp64", nbytes=1)
    return Program(TINY, plan_of(text), (*ops, last), {**buffers, "kept": kept}, {})


def performed(rank: int, text: str, ways: list[tuple[str, str]]) -> list[Any]:
    """What every rank received, and what rank 0's collectives carried and were called."""
    program = program_of(text, *ways)
    cpu, groups = torch.device("cpu"), ProcessGroups(rank, 60.0)
    place = RankContext(grid=program.plan.grid, rank=rank, device=cpu, adamw=AdamW())
    groups.prepare(program)
    table = BufferTable(program, cpu)
    own = torch.arange(ROWS * WIDTH, dtype=torch.float64) + 100 * rank
    table["sent"].copy_(own.view(ROWS, WIDTH))
    recorder = recorder_for(program, place)
    carried = play(prepare(program, table, groups, place), table, place, recorder)
    spans = [span.op.name for span in recorder.timeline(program, rank).spans]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, table["kept"].tolist())
    return [every, carried, spans]


def expected(ranks: int, groups: list[list[list[int]]]) -> list[list[list[float]]]:
    """The rows by plain indexing: the n-th part of each member of a group, for its n-th member."""
    held = torch.arange(ROWS * WIDTH, dtype=torch.float64).view(1, ROWS, WIDTH)
    held = held + 100 * torch.arange(ranks, dtype=torch.float64).view(-1, 1, 1)
    for axis in groups:
        after = held.clone()
        for members in axis:
            parts = held[members].chunk(len(members), dim=1)
            for part, member in zip(parts, members, strict=True):
                after[member] = part.reshape(ROWS, WIDTH)
        held = after
    found: list[list[list[float]]] = held.tolist()
    return found


def beside_and_blocking(rank: int) -> list[list[Any]]:
    """On a stream of its own, and on the one that computes."""
    ways = [[("dp", first), ("tp", "tp")] for first in ("dp", COMPUTE)]
    return [performed(rank, "tp=2,dp=2", each) for each in ways]


@pytest.mark.distributed
def test_parts_go_to_the_members_of_each_axis_in_the_order_of_the_group() -> None:
    for every, carried, spans in on_ranks(4, beside_and_blocking):
        assert every == expected(4, [[[0, 2], [1, 3]], [[0, 1], [2, 3]]])
        assert carried == {"dp": 8 * ROWS * WIDTH, "tp": 8 * ROWS * WIDTH}
        assert spans == ["to_dp", "to_tp", "keep"]
