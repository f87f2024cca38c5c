"""Process groups: one per set of ranks that a program's collectives and messages need."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from workload.grid import Grid
from workload.op import Op
from workload.program import Program

Round = tuple[str, ...]  # what a group is for: its direction, if it carries messages, and its axes


class Groups:
    """The process groups of one rank, made once for each grid and use."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._rank = rank
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[tuple[Grid, Round], dist.ProcessGroup] = {}
        self._grid = Grid()

    def prepare(self, program: Program) -> None:
        """Make every group that a program's collectives and messages run in.

        All ranks make their groups round by round, and in each round every rank makes one, if only
        with itself: torch names a group by its members and by how many groups a rank has made.
        Messages of either direction have groups of their own, so that neither waits for the other.
        """
        self._grid = program.plan.grid
        mine = {_round(op, self._grid): op for op in program.ops if op.communicates}
        everyone: list[Any] = [None] * dist.get_world_size()  # a sample's grid may be another
        dist.all_gather_object(everyone, sorted(mine))
        for key in sorted({tuple(key) for keys in everyone for key in keys}):
            if (self._grid, key) not in self._made:
                members = self._members(mine[key]) if key in mine else [self._rank]
                self._made[self._grid, key] = dist.new_group(
                    members, timeout=self._timeout, use_local_synchronization=True
                )

    def of(self, op: Op) -> dist.ProcessGroup:
        """The group in which a collective or message of the prepared program runs."""
        return self._made[self._grid, _round(op, self._grid)]

    def _members(self, op: Op) -> list[int]:
        rows: list[list[int]] = self._grid.groups(*op.group).tolist()
        return next(row for row in rows if self._rank in row)


def _round(op: Op, grid: Grid) -> Round:
    """Links between stages share a round where no stage has two of them."""
    if not op.is_message:
        return ("", *op.axes)
    link = op.attributes["link"]
    last_of_odd = grid.pipe % 2 and link == grid.pipe - 1
    return (op.stream.partition(".")[2], "last" if last_of_odd else f"{link % 2}")
