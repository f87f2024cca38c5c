"""What programs have in common that differ in sizes alone: who waits for whom, who frees what."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from workload.dataflow import Waits, retired_at, waits
from workload.op import ROLES, Buffer, Op

Ints = NDArray[np.int64]
Others = ParamSpec("Others")
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Outline:
    """The ops and buffers of some program; their sizes are not looked at."""

    ops: Sequence[Op]
    buffers: Mapping[str, Buffer]
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

    def levels(self, nbytes: Sequence[int]) -> Ints:
        """Bytes in use during each op by role, (roles, ops), given the sizes of all buffers.

        Persistent buffers count throughout, any other from the op that first writes it.
        """
        sizes = np.array(nbytes, dtype=np.int64)
        where, role, buffer, sign = self._changes
        changes = np.zeros((len(ROLES), len(self.ops) + 1), dtype=np.int64)
        np.add.at(changes, (role, where), sign * sizes[buffer])
        return np.asarray(changes.cumsum(axis=1)[:, :-1], dtype=np.int64)

    @cached_property
    def _changes(self) -> Ints:
        """Before which op, in which role, which buffer comes (1) or is gone (-1)."""
        number = {name: at for at, name in enumerate(self.buffers)}
        role = {name: ROLES.index(buffer.role) for name, buffer in self.buffers.items()}
        held = [name for name, buffer in self.buffers.items() if buffer.persistent]
        changes = [(0, role[name], number[name], 1) for name in held]
        live = set(held)
        for index, (op, gone) in enumerate(zip(self.ops, self.releases, strict=True)):
            for name in op.writes:
                if name not in live:
                    live.add(name)
                    changes.append((index, role[name], number[name], 1))
            changes += [(index + 1, role[name], number[name], -1) for name in gone]
            live.difference_update(gone)
        return np.array(changes, dtype=np.int64).reshape(-1, 4).T


def noted(
    function: Callable[Concatenate[Outline, Others], Found],
) -> Callable[Concatenate[Outline, Others], Found]:
    """Keep what a function finds out about an outline, for as long as there is that outline."""

    @wraps(function)
    def found(outline: Outline, /, *others: Others.args, **named: Others.kwargs) -> Found:
        key = function, *others
        if key not in outline.notes:
            outline.notes[key] = function(outline, *others, **named)
        known: Found = outline.notes[key]
        return known

    return found
