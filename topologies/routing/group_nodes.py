"""The nodes that each group's ring visits, as arrays with one row per group and node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import Indices
from topologies.placement import Placement

WORD = 63  # bits of a mask in one number of numpy


@dataclass(frozen=True, eq=False)
class Visits:
    """One row per group and node: rows of a group stand together, in the order of its ring.

    `devices` says which of `sets`, bit masks in order, are the group's devices in that node,
    `local` their number, and `following` the row that the ring visits next.
    """

    groups: int
    group: Indices
    node: Indices
    devices: Indices
    sets: tuple[int, ...]
    local: Indices
    following: Indices

    @property
    def nodes_of_group(self) -> Indices:
        """How many nodes each group visits."""
        return np.bincount(self.group, minlength=self.groups)

    def devices_in(self, which: int) -> tuple[int, ...]:
        """The devices of one of the sets, in order."""
        mask = self.sets[which]
        return tuple(d for d in range(mask.bit_length()) if mask >> d & 1)


def visits_of(placement: Placement, members: Indices) -> Visits:
    """The visits of groups given as an array of ranks, (groups, p), each row in ring order.

    A node is visited once, where the ring first comes to it, however its ranks are scattered.
    """
    groups = len(members)
    span = int(placement.node.max()) + 1
    where = np.arange(groups)[:, None] * span + placement.node[members]
    rows, first, row_of = np.unique(where, return_index=True, return_inverse=True)
    row_of = row_of.reshape(-1)
    sets, devices = _sets_of(row_of, placement.device[members].reshape(-1), len(rows))
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
        sets=sets,
        local=np.bincount(row_of)[order],
        following=following,
    )


def together(parts: Sequence[Visits]) -> Visits:
    """The visits of several axes as one table: groups and rows are numbered through."""
    groups = np.cumsum([0, *(part.groups for part in parts)])
    rows = np.cumsum([0, *(len(part.group) for part in parts)])
    sets = sorted({mask for part in parts for mask in part.sets})
    number = {mask: n for n, mask in enumerate(sets)}
    renamed = [np.array([number[mask] for mask in part.sets])[part.devices] for part in parts]
    return Visits(
        groups=int(groups[-1]),
        group=np.concatenate([part.group + g for part, g in zip(parts, groups, strict=False)]),
        node=np.concatenate([part.node for part in parts]),
        devices=np.concatenate(renamed),
        sets=tuple(sets),
        local=np.concatenate([part.local for part in parts]),
        following=np.concatenate(
            [part.following + r for part, r in zip(parts, rows, strict=False)]
        ),
    )


def _sets_of(row_of: Indices, device: Indices, rows: int) -> tuple[tuple[int, ...], Indices]:
    """The different sets of devices as bit masks, in order, and which one each row has."""
    words = np.zeros((int(device.max()) // WORD + 1, rows), dtype=np.int64)
    np.bitwise_or.at(words, (device // WORD, row_of), np.int64(1) << (device % WORD))
    if len(words) == 1:
        found, which = different(words[0])
        return tuple(found.tolist()), which
    columns, which = np.unique(words[::-1], axis=1, return_inverse=True)
    masks = [
        sum(word << WORD * n for n, word in enumerate(row[::-1])) for row in columns.T.tolist()
    ]
    return tuple(masks), which.reshape(-1)


def different(values: Indices) -> tuple[Indices, Indices]:
    """The different values in order, and which of them each is; most are as the one before."""
    begins = np.append(True, values[1:] != values[:-1])
    found, which = np.unique(values[begins], return_inverse=True)
    return found, which.reshape(-1)[np.cumsum(begins) - 1]
