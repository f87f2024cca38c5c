"""The nodes that each group's ring visits, as arrays with one row per group and node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import Indices
from topologies.placement import Placement


@dataclass(frozen=True, eq=False)
class Visits:
    """One row per group and node: rows of a group stand together, in the order of its ring.

    `devices` is the bit mask of the group's devices in that node, `local` their number, and
    `following` the row that the ring visits next.
    """

    groups: int
    group: Indices
    node: Indices
    devices: Indices
    local: Indices
    following: Indices

    @property
    def nodes_of_group(self) -> Indices:
        """How many nodes each group visits."""
        return np.bincount(self.group, minlength=self.groups)


def visits_of(placement: Placement, members: Indices) -> Visits:
    """The visits of groups given as an array of ranks, (groups, p), each row in ring order.

    A node is visited once, where the ring first comes to it, however its ranks are scattered.
    """
    groups = len(members)
    span = int(placement.node.max()) + 1
    where = np.arange(groups)[:, None] * span + placement.node[members]
    rows, first, row_of = np.unique(where, return_index=True, return_inverse=True)
    row_of = row_of.reshape(-1)
    devices = np.zeros(len(rows), dtype=np.int64)
    np.bitwise_or.at(devices, row_of, np.int64(1) << placement.device[members].reshape(-1))
    order = np.argsort(first)
    group = rows[order] // span
    starts = np.searchsorted(group, np.arange(groups))
    following = np.arange(1, len(rows) + 1)
    following[np.append(starts[1:], len(rows)) - 1] = starts
    return Visits(
        groups=groups,
        group=group,
        node=rows[order] % span,
        devices=devices[order],
        local=np.bincount(row_of)[order],
        following=following,
    )


def together(parts: Sequence[Visits]) -> Visits:
    """The visits of several axes as one table: groups and rows are numbered through."""
    groups = np.cumsum([0, *(part.groups for part in parts)])
    rows = np.cumsum([0, *(len(part.group) for part in parts)])
    return Visits(
        groups=int(groups[-1]),
        group=np.concatenate([part.group + g for part, g in zip(parts, groups, strict=False)]),
        node=np.concatenate([part.node for part in parts]),
        devices=np.concatenate([part.devices for part in parts]),
        local=np.concatenate([part.local for part in parts]),
        following=np.concatenate(
            [part.following + r for part, r in zip(parts, rows, strict=False)]
        ),
    )


def devices_in(mask: int) -> tuple[int, ...]:
    """The devices of a bit mask, in order.

    >>> devices_in(0b1010)
    (1, 3)
    """
    return tuple(d for d in range(mask.bit_length()) if mask >> d & 1)
