"""PyTorch's caching allocator: what it reserves for the buffers of a program.

Rules: sizes are rounded up to 512 bytes. Up to 1 MiB they come out of segments of 2 MiB, up to 10
MiB out of segments of 20 MiB, larger ones out of segments of their own in multiples of 2 MiB. The
smallest free block that is large enough serves; what is left of it stays free, but of a large block
only if more than 1 MiB is left. Neighbouring free blocks of a segment join.
Source: github.com/pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp, constants and
get_free_block, should_split, try_merge_blocks.
Not modelled: streams (a block serves the stream that asked first), giving segments back when memory
runs out, expandable segments.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from workload.op import HOST
from workload.program import Program

KIB, MIB = 1024, 1024 * 1024
LEAST, SMALL, LARGE = 512, MIB, 10 * MIB
SEGMENT_SMALL, SEGMENT_MIDDLE, MULTIPLE = 2 * MIB, 20 * MIB, 2 * MIB


@dataclass(slots=True)
class _Block:
    """A part of a segment of the pool of small or of large blocks; `before` and `behind` are its
    neighbours there."""

    size: int
    order: int
    small: bool
    free: bool = True
    before: _Block | None = None
    behind: _Block | None = None


_Entry = tuple[int, int, _Block]


@dataclass
class CachingAllocator:
    """Blocks given out by name; all bytes are counted in `allocated` and `reserved`."""

    allocated: int = 0
    reserved: int = 0
    most_allocated: int = 0
    most_reserved: int = 0
    _given: dict[str, _Block] = field(default_factory=dict)
    _free: dict[bool, list[_Entry]] = field(default_factory=lambda: {True: [], False: []})
    _made: int = 0

    def take(self, name: str, nbytes: int) -> None:
        """Give out a block of so many bytes."""
        size = max(-(-nbytes // LEAST), 1) * LEAST
        block = self._found(size) or self._segment(size)
        if block.size - size >= (LEAST if block.small else SMALL + 1):
            self._split(block, size)
        block.free = False
        self._given[name] = block
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        self.most_reserved = max(self.most_reserved, self.reserved)

    def give_back(self, name: str) -> None:
        """Free a block, and join it with its free neighbours."""
        block = self._given.pop(name)
        self.allocated -= block.size
        block.free = True
        for other in (block.before, block.behind):
            if other is not None and other.free:
                self._forget(other)
                block = _joined(block, other)
        self._keep(block)

    def _found(self, size: int) -> _Block | None:
        pool = self._free[size <= SMALL]
        at = bisect_left(pool, (size, -1), key=_place)
        return pool.pop(at)[2] if at < len(pool) else None

    def _segment(self, size: int) -> _Block:
        if size <= SMALL:
            whole = SEGMENT_SMALL
        else:
            whole = SEGMENT_MIDDLE if size < LARGE else -(-size // MULTIPLE) * MULTIPLE
        self.reserved += whole
        return self._block(whole, size <= SMALL)

    def _block(self, size: int, small: bool) -> _Block:
        self._made += 1
        return _Block(size, self._made, small)

    def _split(self, block: _Block, size: int) -> None:
        rest = self._block(block.size - size, block.small)
        rest.before, rest.behind = block, block.behind
        if block.behind is not None:
            block.behind.before = rest
        block.behind, block.size = rest, size
        self._keep(rest)

    def _keep(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.order, block), key=_place)

    def _forget(self, block: _Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, _place((block.size, block.order, block)), key=_place)]


def _place(entry: _Entry) -> tuple[int, int]:
    return entry[:2]


def _joined(block: _Block, other: _Block) -> _Block:
    """Two neighbours as one, in the place of the first of them."""
    first, second = (block, other) if block.behind is other else (other, block)
    first.size += second.size
    first.behind = second.behind
    if second.behind is not None:
        second.behind.before = first
    return first


def allocator_after(program: Program, steps: int = 2) -> CachingAllocator:
    """The allocator after so many steps of a rank's program, persistent buffers first.

    What is kept in the host's memory takes none of the device's.
    """
    allocator = CachingAllocator()
    nbytes = dict(zip(program.buffers, program.nbytes, strict=True))
    here = {name for name, buffer in program.buffers.items() if buffer.role != HOST}
    for name, buffer in program.buffers.items():
        if buffer.persistent and name in here:
            allocator.take(name, nbytes[name])
    for _ in range(steps):
        held: set[str] = set()
        for op, over in zip(program.ops, program.releases, strict=True):
            for name in op.writes:
                if name in here and name not in held and not program.buffers[name].persistent:
                    allocator.take(name, nbytes[name])
                    held.add(name)
            for name in over:
                if name in held:
                    allocator.give_back(name)
                    held.remove(name)
        for name in sorted(held):
            allocator.give_back(name)
    return allocator
