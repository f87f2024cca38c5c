"""The buffer table: the program's named buffers as tensors."""

from __future__ import annotations

from math import prod

import torch

from executor.rank_context import DTYPES
from workload.op import HOST, Buffer, Op
from workload.program import Program


class BufferTable:
    """Tensors by buffer name. Persistent ones are there from the start, others while they live.

    Persistent buffers that one collective sums together lie side by side in an arena, so that it is
    one call on one tensor. On a CPU a freed tensor's memory is kept for the next one of its size,
    as CUDA's caching allocator does, while `keeps_freed` is set. Buffers of the role "host" take
    `host_bytes`; beside a GPU they lie in pinned memory.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self._buffers = program.buffers
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}
        self._arenas: dict[str, torch.Tensor] = {}
        self._pool: dict[int, list[torch.Tensor]] = {}
        self.keeps_freed = device.type == "cpu"
        self.host_bytes = 0
        for op in program.ops:
            if self._sums_together(op):
                self._lay_out(op)
        for buffer in program.buffers.values():
            if buffer.persistent and buffer.name not in self._tensors:
                self._adopt(buffer, self._empty(buffer).zero_())

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def operands(self, op: Op) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A collective's inputs and outputs in pairs; one arena where it sums several buffers.

        A message's pair begins with the tensor that it moves.
        """
        if op.is_message:
            target = self.output(op.writes[0])
            return [(self._tensors[op.reads[0]] if op.reads else target, target)]
        if op.name in self._arenas:
            return [(self._arenas[op.name], self._arenas[op.name])]
        pairs = zip(op.reads, op.writes, strict=True)
        return [(self._tensors[source], self.output(target)) for source, target in pairs]

    def output(self, name: str) -> torch.Tensor:
        """The tensor behind a buffer that is about to be written; it comes to life here."""
        if name not in self._tensors:
            self._adopt(self._buffers[name], self._empty(self._buffers[name]))
        return self._tensors[name]

    def free(self, name: str) -> None:
        """End a transient buffer's life."""
        tensor = self._tensors.pop(name)
        if self.keeps_freed:
            self._pool.setdefault(tensor.nbytes, []).append(tensor)

    def give_back(self) -> None:
        """Let go of all memory that is kept for later tensors."""
        self._pool.clear()

    def _adopt(self, buffer: Buffer, tensor: torch.Tensor) -> None:
        self._tensors[buffer.name] = tensor
        if buffer.role == HOST:
            self.host_bytes += tensor.untyped_storage().nbytes()

    def _empty(self, buffer: Buffer) -> torch.Tensor:
        dtype = DTYPES[buffer.dtype]
        if buffer.role == HOST:
            pinned = self._device.type == "cuda"
            return torch.empty(buffer.shape, dtype=dtype, pin_memory=pinned)
        kept = self._pool.get(buffer.nbytes)
        if kept:
            return kept.pop().view(-1).view(torch.uint8).view(dtype).view(buffer.shape)
        return torch.empty(buffer.shape, dtype=dtype, device=self._device)

    def _sums_together(self, op: Op) -> bool:
        several = op.kind == "all_reduce" and len(op.reads) > 1
        return several and all(self._buffers[name].persistent for name in op.reads)

    def _lay_out(self, op: Op) -> None:
        parts = [self._buffers[name] for name in op.reads]
        total = sum(part.elements for part in parts)
        arena = torch.zeros(total, dtype=DTYPES[parts[0].dtype], device=self._device)
        self._arenas[op.name] = arena
        start = 0
        for part in parts:
            view = arena[start : start + prod(part.shape)].view(part.shape)
            self._adopt(part, view)
            start += part.elements
