"""The process groups of one rank whose others are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from executor.groups import ProcessGroups, Use
from executor.nccl.issue_order import members_of, round_of
from workload.grid import Grid
from workload.program import Program

TIMEOUT_S = 60.0  # nothing is ever waited for


@contextmanager
def fake_job(rank: int, ranks: int) -> Iterator[None]:
    """Be one of so many ranks of torch's fake backend, which moves nothing."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class LoneGroups(ProcessGroups):
    """The groups that a rank's own program needs, of ranks of which only this one is there."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, TIMEOUT_S)

    def prepare(self, program: Program) -> None:
        """Make the groups of this rank's collectives and messages, round by round."""
        grid: Grid = program.plan.grid
        mine = {round_of(op, grid): op for op in program.ops if op.communicates}
        self._grid, self._use = grid, Use(grid, (tuple(sorted(mine)),))
        for key in sorted(mine):
            self._made[self._use, key] = self._group(members_of(mine[key], grid, self._rank))

    @property
    def count(self) -> int:
        """How many groups the rank is a member of."""
        return len(self._made)
