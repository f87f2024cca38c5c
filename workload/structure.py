"""What programs have in common that differ in sizes alone: who waits for whom, who frees what."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from workload.dataflow import Waits, retired_at, waits
from workload.op import ROLES, Block, Buffer, Op
from workload.pipeline.schedule import Slot
from workload.sizes.arrays import Bytes, Indices

Others = ParamSpec("Others")
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Structure:
    """The ops and buffers of some program, whose sizes are not looked at, and the slots of its
    blocks. `notes` are for `memoized_on`."""

    ops: Sequence[Op]
    buffers: Mapping[str, Buffer]
    slot_of: Mapping[Block, Slot] = field(default_factory=dict)
    notes: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def waits(self) -> list[Waits]:
        """For each op the indices of the ops it waits for on other streams."""
        return waits(self.ops)

    @cached_property
    def releases(self) -> list[list[str]]:
        """For each op the transient buffers that nobody needs once it is through.

        A buffer dies when the last op that touches it is known to be done (`retired_at`), so one
        that an asynchronous collective still works on is held until that collective is awaited.
        """
        retired = retired_at(self.ops, self.waits)
        last: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            for name in (*op.reads, *op.writes):
                if retired[index] > last.get(name, -1):
                    last[name] = retired[index]
        freed: list[list[str]] = [[] for _ in self.ops]
        for name, index in last.items():
            if not self.buffers[name].persistent:
                freed[index].append(name)
        return freed

    def levels(self, nbytes: Sequence[int]) -> Bytes:
        """Bytes in use during each op by role, (roles, ops), given the sizes of all buffers.

        Persistent buffers count throughout, any other from the op that first writes it.
        """
        born, gone = self.changes(nbytes)
        return np.asarray(
            self.persistent(nbytes)[:, None] + (born - gone).cumsum(axis=1) + gone, dtype=np.int64
        )

    def persistent(self, nbytes: Sequence[int]) -> Bytes:
        """Bytes by role that are there all the time, (roles,)."""
        return self._by_role(nbytes, self._persistent)

    def _by_role(self, nbytes: Sequence[int], places: Indices) -> Bytes:
        level = np.zeros(len(ROLES), dtype=np.int64)
        np.add.at(level, self._roles[places], np.array(nbytes, dtype=np.int64)[places])
        return level

    @cached_property
    def _roles(self) -> Indices:
        """The role of each buffer."""
        roles = [ROLES.index(buffer.role) for buffer in self.buffers.values()]
        return np.array(roles, dtype=np.int64)

    @cached_property
    def _persistent(self) -> Indices:
        return np.flatnonzero([buffer.persistent for buffer in self.buffers.values()])

    def changes(self, nbytes: Sequence[int]) -> tuple[Bytes, Bytes]:
        """Bytes by role, (roles, ops), that come with each op, and that are free after it; without
        those that are there all the time."""
        sizes = np.array(nbytes, dtype=np.int64)
        found = []
        for op, role, buffer in self._lives:
            changes = np.zeros((len(ROLES), len(self.ops)), dtype=np.int64)
            np.add.at(changes, (role, op), sizes[buffer])
            found.append(changes)
        return found[0], found[1]

    @cached_property
    def _lives(self) -> tuple[Indices, Indices]:
        """Which op, which role, which buffer: where buffers come, and where they go."""
        number = {name: at for at, name in enumerate(self.buffers)}
        role = {name: ROLES.index(buffer.role) for name, buffer in self.buffers.items()}
        live = {name for name, buffer in self.buffers.items() if buffer.persistent}
        born: list[tuple[int, int, int]] = []
        gone: list[tuple[int, int, int]] = []
        for index, (op, freed) in enumerate(zip(self.ops, self.releases, strict=True)):
            for name in op.writes:
                if name not in live:
                    live.add(name)
                    born.append((index, role[name], number[name]))
            gone += [(index, role[name], number[name]) for name in freed]
            live.difference_update(freed)
        pairs = (np.array(each, dtype=np.int64).reshape(-1, 3).T for each in (born, gone))
        first, second = pairs
        return first, second


def memoized_on(
    function: Callable[Concatenate[Structure, Others], Found],
) -> Callable[Concatenate[Structure, Others], Found]:
    """Keep what a function finds out about an outline, for as long as there is that outline."""

    @wraps(function)
    def found(outline: Structure, /, *others: Others.args, **named: Others.kwargs) -> Found:
        key = function, others, tuple(named.items())
        if key not in outline.notes:
            outline.notes[key] = function(outline, *others, **named)
        known: Found = outline.notes[key]
        return known

    return found
