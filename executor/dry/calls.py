"""What torch.distributed is asked to do, beside what the program says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import TorchDispatchMode

from topologies.records import record
from workload.grid import ENDS, OPPOSITE, Grid
from workload.kinds import MESSAGES, RING_SHIFT
from workload.op import Op

_C10D: Any = torch.ops.c10d
# By torch's operator: the kind of op, and which of its arguments are the process group, the tensors
# that carry the payload, and those on the other side of it, a group's size smaller.
CALLS: Mapping[Any, tuple[str, int, int, int | None]] = {
    _C10D._allgather_base_.default: ("all_gather", 2, 0, 1),
    _C10D.allgather_into_tensor_coalesced_.default: ("all_gather", 2, 0, 1),
    _C10D._reduce_scatter_base_.default: ("reduce_scatter", 2, 1, 0),
    _C10D.reduce_scatter_tensor_coalesced_.default: ("reduce_scatter", 2, 1, 0),
    _C10D.allreduce_.default: ("all_reduce", 1, 0, None),
    _C10D.allreduce_coalesced_.default: ("all_reduce", 1, 0, None),
    _C10D.alltoall_base_.default: ("all_to_all", 2, 1, None),
    _C10D.send.default: ("send", 1, 0, None),
    _C10D.recv_.default: ("recv", 1, 0, None),
}
COALESCED = (
    _C10D.allgather_into_tensor_coalesced_.default,
    _C10D.reduce_scatter_tensor_coalesced_.default,
    _C10D.allreduce_coalesced_.default,
)
PEER = 2  # the argument that is a message's other side, by its number in the group


@record
class Asked:
    """A collective or message of torch: its kind, its bytes, and the ranks that take part, of a
    message this rank and the other side."""

    kind: str
    nbytes: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        first = ", ".join(map(str, self.ranks[:4]))
        more = f", … ({len(self.ranks)} ranks)" if len(self.ranks) > 4 else ""
        return f"{self.kind} of {self.nbytes:,} bytes among ranks {first}{more}"


class AskedCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what torch.distributed's operators are called with while it is on."""

    def __init__(self, rank: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rank = rank
        self._members: dict[str, tuple[int, ...]] = {}
        self._asked: list[Asked] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Perform an operator, and note it if ranks meet in it."""
        if func.namespace == "c10d":
            self._asked.append(self._noted(func, args))
            if func in COALESCED:  # PyTorch 2.13 has no fake form of these
                return FakeWork().boxed()
        return func(*args, **(kwargs or {}))

    def taken(self) -> list[Asked]:
        """The calls since it was last asked."""
        asked, self._asked = self._asked, []
        return asked

    def _noted(self, func: Any, args: Any) -> Asked:
        if func not in CALLS:
            raise NotImplementedError(f"{func} is not a call that the executor makes")
        kind, group, payload, other = CALLS[func]
        ranks = self._ranks_of(dist.ProcessGroup.unbox(args[group]))
        if kind in MESSAGES:
            ranks = (self._rank, ranks[args[PEER]])
        nbytes = _nbytes(args[payload])
        if other is not None and nbytes != (small := _nbytes(args[other])) * len(ranks):
            raise ValueError(f"{kind} of {nbytes} bytes, {small} a rank, among {len(ranks)} ranks")
        return Asked(kind, nbytes, ranks)

    def _ranks_of(self, group: dist.ProcessGroup) -> tuple[int, ...]:
        name = group.group_name
        if name not in self._members:
            self._members[name] = tuple(dist.get_process_group_ranks(group))
        return self._members[name]


def expected(op: Op, grid: Grid, rank: int) -> list[Asked]:
    """What an op should ask for, from its axes and the strides of the grid alone."""
    if op.kind == RING_SHIFT:
        every = members(op, grid, rank)
        own = every.index(rank)
        there, back = every[(own + 1) % len(every)], every[own - 1]
        return [Asked("send", op.nbytes, (rank, there)), Asked("recv", op.nbytes, (rank, back))]
    if op.is_message:
        at = grid.coordinates(rank)
        stage = (at["pp"] + op.attributes["peer"]) % grid.pp
        peer = rank + (stage - at["pp"]) * grid.stride("pp")
        return [Asked(op.kind, op.nbytes, (rank, peer))]
    return [Asked(op.kind, op.nbytes, members(op, grid, rank))]


def members(op: Op, grid: Grid, rank: int) -> tuple[int, ...]:
    """The ranks that differ from this one along an op's axes alone, in rank order."""
    at, steps = grid.coordinates(rank), []
    for axis in op.axes:
        places: Sequence[int]
        if axis == ENDS:
            places, own, stride = (0, grid.pp - 1), at["pp"], grid.stride("pp")
        elif axis == OPPOSITE:
            own, stride = at["pp"], grid.stride("pp")
            places = own, grid.pp - 1 - own
        else:
            places, own, stride = range(grid.size(axis)), at[axis], grid.stride(axis)
        steps.append([(place - own) * stride for place in places])
    return tuple(sorted(rank + sum(away) for away in product(*steps)))


def _nbytes(tensors: Any) -> int:
    several = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return sum(tensor.nbytes for tensor in several)
