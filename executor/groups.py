"""Process groups: one per set of ranks that a program's collectives and messages need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from executor.exchanges.nodes import depends_on_nodes, local_world_size
from executor.nccl.issue_order import Round, calls_of, members_of, round_of
from executor.nccl.rendezvous import EAGER, MODULE_LOADING, among, hang_of, message_rounds
from workload.errors import PlanCannotRunError
from workload.grid import Grid
from workload.op import Op
from workload.program import Program


class Use(NamedTuple):
    """What groups are made for: a grid, and the rounds of each rank. On one grid these differ where
    chunks are interleaved, as messages then close the ring of stages, and where a stage has no
    layers."""

    grid: Grid
    rounds: tuple[tuple[Round, ...], ...]


class ProcessGroups:
    """The process groups of one rank, made once for each grid and each use of it. Ranks fill nodes
    of `ranks_of_node` one after the other; 0: all are on one."""

    def __init__(self, rank: int, timeout_s: float, ranks_of_node: int = 0) -> None:
        self._rank = rank
        self._ranks_of_node = ranks_of_node
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[tuple[Use, Round], dist.ProcessGroup] = {}
        self._grid, self._use = Grid(), Use(Grid(), ())

    def prepare(self, program: Program) -> None:
        """Make every group that a program's collectives and messages run in, ready for use.

        All ranks make their groups round by round, and in each round every rank makes one, if only
        with itself: torch names a group by its members and by how many groups a rank has made, and
        where a GPU is bound to the job, making a group splits the communicator of all ranks.
        Raises PlanCannotRunError on all ranks where a group of one of them has more ranks on one
        node than on another and an op of it depends on that.
        """
        self._grid = program.plan.grid
        mine = {round_of(op, self._grid): op for op in program.ops if op.communicates}
        everyone: list[Any] = [None] * dist.get_world_size()  # a sample's grid may be another
        dist.all_gather_object(everyone, (sorted(mine), self._refusal(program)))
        if refusal := next((why for _, why in everyone if why), ""):
            raise PlanCannotRunError(refusal)
        rounds = tuple(tuple(map(tuple, keys)) for keys, _ in everyone)
        self._use = Use(self._grid, rounds)
        for key in sorted({key for keys in rounds for key in keys}):
            if (self._use, key) not in self._made:
                op = mine.get(key)
                members = members_of(op, self._grid, self._rank) if op else (self._rank,)
                self._made[self._use, key] = self._group(members)
                if op is not None and op.is_message:
                    self._meet(op, members)

    def check(self, program: Program, order: Sequence[int]) -> None:
        """Refuse a pipeline whose stages would wait for each other for ever, issued in this order.

        One rank of each stage tells all others what it issues: those beside it do the same.
        """
        grid = program.plan.grid
        if grid.pp == 1:
            return
        chosen = [grid.rank({"pp": stage}) for stage in range(grid.pp)]
        own = calls_of(program, self._rank, order) if self._rank in chosen else []
        # One after the other: gathering would set aside as much room for each of all the ranks.
        told = [[own] for _ in chosen]
        for box, rank in zip(told, chosen, strict=True):
            dist.broadcast_object_list(box, src=rank)
        calls = among(chosen, {rank: box[0] for rank, box in zip(chosen, told, strict=True)})
        loading = dist.get_backend() == "nccl" and os.environ.get(MODULE_LOADING) != EAGER
        if hang := hang_of(calls, message_rounds(calls), loading=loading):
            ends = loading and not hang_of(calls, message_rounds(calls))
            cure = f"; with {MODULE_LOADING}={EAGER} on all ranks they do not" if ends else ""
            raise PlanCannotRunError(
                f"the stages of {program.plan} wait for each other: {hang}{cure}"
            )

    def of(self, op: Op) -> dist.ProcessGroup:
        """The group in which a collective or message of the prepared program runs."""
        return self._made[self._use, round_of(op, self._grid)]

    def local_world_size(self, op: Op) -> int:
        """How many ranks of an op's group share a node, where that matters to it; else 0."""
        if not depends_on_nodes(op):
            return 0
        members = members_of(op, self._grid, self._rank)
        return local_world_size(members, self._ranks_of_node or max(members) + 1, op)

    def _refusal(self, program: Program) -> str:
        """Why a group of this rank cannot be, or nothing: to be told to all ranks, since those of
        other groups and stages may have none such and would wait."""
        apart = {round_of(op, self._grid): op for op in program.ops if depends_on_nodes(op)}
        try:
            for op in apart.values():
                self.local_world_size(op)
        except PlanCannotRunError as error:
            return str(error)
        return ""

    def _group(self, members: Sequence[int]) -> dist.ProcessGroup:
        options = None
        if dist.get_backend() == "nccl":
            # From the pool of high priority, so that none is a stream that the executor makes for
            # itself, and so that a collective does not queue behind the kernels it runs beside.
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options._timeout = self._timeout
        group: dist.ProcessGroup = dist.new_group(
            list(members),
            timeout=self._timeout,
            pg_options=options,
            use_local_synchronization=True,
        )
        return group

    def _meet(self, op: Op, members: Sequence[int]) -> None:
        """Exchange a number with the other side of a link, so that the two are connected.

        NCCL connects two ranks at their first message, and their hosts wait for each other there:
        in a step one stage would stay in a message forward and its neighbour in one backward. Here
        all ranks come to the rounds in one order, and in a round each has one link at most.
        """
        on_gpu = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"
        start = dist.isend if op.kind == "send" else dist.irecv
        (other,) = (member for member in members if member != self._rank)
        work = start(
            torch.zeros(1, device=device), other, self._made[self._use, round_of(op, self._grid)]
        )
        assert work is not None, "the rank is a member"
        work.wait()
