"""Process groups: one per set of ranks that a program's collectives need."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from workload.grid import Grid
from workload.op import Op
from workload.program import Program


class Groups:
    """The process groups of one rank, made once for each distinct set of members."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._rank = rank
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._by_axes: dict[tuple[str, ...], dist.ProcessGroup] = {}

    def prepare(self, program: Program) -> None:
        """Make every group that a program's collectives run in."""
        axes = dict.fromkeys(op.axes for op in program.ops if op.is_collective)
        self._by_axes = {names: self._group(program.plan.grid, names) for names in axes}

    def of(self, op: Op) -> dist.ProcessGroup:
        """The group in which a collective of the prepared program runs."""
        return self._by_axes[op.axes]

    def _group(self, grid: Grid, axes: tuple[str, ...]) -> dist.ProcessGroup:
        mine = next(row for row in grid.groups(*axes) if self._rank in row)
        members = tuple(int(rank) for rank in mine)
        if members not in self._made:
            self._made[members] = dist.new_group(
                list(members), timeout=self._timeout, use_local_synchronization=True
            )
        return self._made[members]
