"""The order in which a stage runs its slots, as columns: whole numbers, one entry a slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from workload.pipeline.slot import BACKWARD, FORWARD, INPUT, PERTURB, WEIGHT, Slot
from workload.sizes.arrays import Flags, Indices

WORKS = (FORWARD, BACKWARD, INPUT, WEIGHT, PERTURB)
CODE = {work: code for code, work in enumerate(WORKS)}


@dataclass(frozen=True, eq=False)
class Order(Sequence[Slot]):
    """Slots in the order in which a stage runs them: the place of each one's work in WORKS, its
    chunk and its micro-batch, (slots,).

    >>> order = Order.of([Slot("forward", 0, 3), Slot("backward", 1, 2)])
    >>> order.work.tolist(), order.chunk.tolist(), order[1].micro_batch
    ([0, 1], [0, 1], 2)
    """

    work: Indices
    chunk: Indices
    micro_batch: Indices

    @classmethod
    def of(cls, slots: Iterable[Slot]) -> Order:
        """The columns of some slots."""
        if isinstance(slots, Order):
            return slots
        rows = [(CODE[slot.work], slot.chunk, slot.micro_batch) for slot in slots]
        return cls(*np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy())

    @classmethod
    def by_place(cls, *parts: tuple[str, Indices, Indices, Indices]) -> Order:
        """The slots of some works, each with its places in the order, chunks and micro-batches."""
        place = np.concatenate([places for _, places, _, _ in parts])
        work = np.repeat([CODE[work] for work, *_ in parts], [len(own[1]) for own in parts])
        chunk, micro_batch = (np.concatenate([own[at] for own in parts]) for at in (2, 3))
        order = np.argsort(place)
        return cls(work[order], chunk[order], micro_batch[order])

    def is_of(self, *works: str) -> Flags:
        """Which slots are of one of these works."""
        found = np.zeros(len(self.work), dtype=np.bool_)
        for work in works:
            found |= self.work == CODE[work]
        return found

    def some(self, which: Flags) -> Order:
        """Some of the slots."""
        return Order(self.work[which], self.chunk[which], self.micro_batch[which])

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All slots."""
        columns = self.work.tolist(), self.chunk.tolist(), self.micro_batch.tolist()
        return tuple(Slot(WORKS[work], chunk, m) for work, chunk, m in zip(*columns, strict=True))

    @overload
    def __getitem__(self, at: int) -> Slot: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Slot, ...]: ...

    def __getitem__(self, at: int | slice) -> Slot | tuple[Slot, ...]:
        if isinstance(at, slice):
            return self.slots[at]
        chunk, micro_batch = int(self.chunk[at]), int(self.micro_batch[at])
        return Slot(WORKS[int(self.work[at])], chunk, micro_batch)

    def __len__(self) -> int:
        return len(self.work)
