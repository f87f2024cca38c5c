"""The buffer table: the program's named buffers as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from executor.memory.release import await_release
from executor.rank_context import DTYPES
from workload.op import HOST, Buffer, Op
from workload.program import Program

Slots = tuple[int, ...]  # of buffers, by their order in the program, and behind them of arenas
SlotPairs = tuple[tuple[int, int], ...]


class BufferTable:
    """Tensors by slot, and for those outside the walk by name. Those of persistent buffers are
    there from the start, others while they live.

    Persistent buffers that one collective sums together lie side by side in an arena, so that it is
    one call on one tensor; one that sums what several others have summed takes their arenas. On a
    CPU a freed tensor's memory is kept for the next one of its size,
    as CUDA's caching allocator does, while `keeps_freed` is set. Buffers of the role "host" take
    `host_bytes`; beside a GPU they lie in pinned memory. With a table that has them `lent`,
    persistent buffers are that one's. With `even_rows` there are as many rows as the program says
    where else the data decides.
    """

    def __init__(
        self,
        program: Program,
        device: torch.device,
        lent: BufferTable | None = None,
        *,
        even_rows: bool = False,
    ) -> None:
        self._buffers = list(program.buffers.values())
        self._slots = {buffer.name: slot for slot, buffer in enumerate(self._buffers)}
        self._device = device
        self._tensors: list[Any] = [None] * len(self._buffers)  # None: not alive
        self._arenas: dict[str, Slots] = {}
        self._arena_of: dict[int, int] = {}  # by the slot of a buffer that lies in one
        self._forms = [(buffer.shape, DTYPES[buffer.dtype]) for buffer in self._buffers]
        self._counts = ["" if even_rows else buffer.rows_of for buffer in self._buffers]
        self._sizes = [buffer.nbytes for buffer in self._buffers]
        pools: dict[int, list[torch.Tensor]] = {}
        self._pools = [pools.setdefault(buffer.nbytes, []) for buffer in self._buffers]
        self.keeps_freed = device.type == "cpu"
        self.host_bytes = 0
        if lent is None:
            for op in program.ops:
                if self._sums_together(op):
                    self._lay_out(op)
        for slot, buffer in enumerate(self._buffers):
            if buffer.persistent and self._tensors[slot] is None:
                own = self._empty(buffer).zero_() if lent is None else lent[buffer.name]
                self._tensors[slot] = own

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._tensors[self._slots[name]]
        return tensor

    def slots(self, names: Iterable[str]) -> Slots:
        """Where the tensors of some buffers are."""
        return tuple(self._slots[name] for name in names)

    def slot_pairs(self, op: Op) -> SlotPairs:
        """A collective's inputs and outputs in pairs; arenas where it sums several buffers.

        A message's pair begins with the tensor that it moves.
        """
        if op.is_message:
            (target,) = self.slots(op.writes)
            return ((self._slots[op.reads[0]] if op.reads else target, target),)
        if op.kind == "all_to_all":
            return ((self._slots[op.reads[0]], self._slots[op.writes[0]]),)
        if op.name in self._arenas:
            return tuple((arena, arena) for arena in self._arenas[op.name])
        return tuple(zip(self.slots(op.reads), self.slots(op.writes), strict=True))

    def nbytes(self, slot: int) -> int:
        """The size of a buffer, alive or not, or of an arena."""
        if slot < len(self._buffers):
            return self._buffers[slot].nbytes
        size: int = self._tensors[slot].nbytes
        return size

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of all buffers, in their order; where data says how many rows there are, of those
        that came last."""
        return tuple(self._sizes)

    def tensors(self, slots: Slots) -> list[torch.Tensor]:
        """The tensors of buffers that are alive."""
        tensors = self._tensors
        return [tensors[slot] for slot in slots]

    def pairs(self, slots: SlotPairs) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors of pairs of buffers that are alive."""
        tensors = self._tensors
        return [(tensors[source], tensors[target]) for source, target in slots]

    def begin(self, slot: int) -> None:
        """Bring a buffer to life."""
        if counts := self._counts[slot]:
            self._tensors[slot] = self._of_rows(slot, self[counts])
            return
        pool, (shape, dtype) = self._pools[slot], self._forms[slot]
        if not pool:
            self._tensors[slot] = self._empty(self._buffers[slot])
            return
        tensor = pool.pop()
        if tensor.dtype is not dtype:
            tensor = tensor.view(-1).view(torch.uint8).view(dtype)
        # A comparison takes a tenth of the time of a view.
        self._tensors[slot] = tensor if tensor.shape == shape else tensor.view(shape)

    def _of_rows(self, slot: int, counts: torch.Tensor) -> torch.Tensor:
        """A tensor of as many rows as the data says, which the host waits to know."""
        (_, *width), dtype = self._forms[slot]
        each, more = self._buffers[slot].rows_in
        count = int(counts.sum()) // each + more
        rows = torch.empty((count, *width), dtype=dtype, device=self._device)
        self._sizes[slot] = rows.nbytes
        return rows

    def free(self, slot: int) -> None:
        """End a transient buffer's life."""
        if self.keeps_freed and not self._counts[slot]:
            self._pools[slot].append(self._tensors[slot])
        elif self._device.type == "cpu" and not self.keeps_freed:
            await_release(self._tensors, slot)
        self._tensors[slot] = None

    def give_back(self) -> None:
        """Let go of all memory that is kept for later tensors."""
        for pool in self._pools:
            pool.clear()

    def _empty(self, buffer: Buffer) -> torch.Tensor:
        dtype = DTYPES[buffer.dtype]
        if buffer.role == HOST:
            self.host_bytes += buffer.nbytes if buffer.persistent else 0
            pinned = self._device.type == "cuda"
            return torch.empty(buffer.shape, dtype=dtype, pin_memory=pinned)
        return torch.empty(buffer.shape, dtype=dtype, device=self._device)

    def _sums_together(self, op: Op) -> bool:
        several = op.kind == "all_reduce" and len(op.reads) > 1
        return several and all(self._buffers[slot].persistent for slot in self.slots(op.reads))

    def _lay_out(self, op: Op) -> None:
        """Put an op's buffers into arenas: those that are in none into one, and what only a part of
        an arena is stands for itself."""
        own = self.slots(op.reads)
        loose = tuple(slot for slot in own if slot not in self._arena_of)
        cut = {self._arena_of[slot] for slot in self._arena_of.keys() - set(own)}
        known = [slot for slot in own if slot not in loose]
        whole = [slot if self._arena_of[slot] in cut else self._arena_of[slot] for slot in known]
        fresh = [self._arena(loose)] if loose else []
        self._arenas[op.name] = tuple(dict.fromkeys([*whole, *fresh]))

    def _arena(self, slots: Slots) -> int:
        """Lay buffers side by side; returns the slot of their arena."""
        parts = [self._buffers[slot] for slot in slots]
        total = sum(part.elements for part in parts)
        arena = torch.zeros(total, dtype=DTYPES[parts[0].dtype], device=self._device)
        number = len(self._tensors)
        self._tensors.append(arena)
        start = 0
        for slot, part in zip(slots, parts, strict=True):
            self._tensors[slot] = arena[start : start + part.elements].view(part.shape)
            self._arena_of[slot] = number
            start += part.elements
        return number
