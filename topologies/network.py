"""The rings of an axis's groups: what bandwidth each gets when all of them run at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.flows import ring_rates_across
from topologies.machine import Machine
from topologies.node import Node
from topologies.packing import packed_rings
from topologies.placement import Placement
from topologies.visits import Visits, devices_in, visits_of

_STEP_BYTES_PER_S = 1e3  # rates closer than this are one ring


@dataclass(frozen=True)
class Ring:
    """What a collective's time depends on: equal rings take equal times.

    `bytes_per_s` is the nominal rate at which the ring moves data through each node, before any
    efficiency of the library, and infinite for a group of one rank; `devices_per_node` is the
    most that the group has in one node.
    """

    ranks: int
    nodes: int
    devices_per_node: int
    bytes_per_s: float


def rings(
    machine: Machine, placement: Placement, members: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[Ring]]:
    """The ring of each group of an axis, as an index into the list of different rings.

    `members` has shape (groups, p): the ranks of each group in ring order. All groups are
    active at once, so they share the links inside nodes, the NICs and the global links.
    """
    ranks = members.shape[1]
    if ranks == 1:
        return np.zeros(len(members), dtype=np.int64), [Ring(1, 1, 1, math.inf)]
    visits = visits_of(placement, members)
    rate = np.minimum(ring_rates_across(machine, visits), _rates_within(machine.node, visits))
    local = np.zeros(visits.groups, dtype=np.int64)
    np.maximum.at(local, visits.group, visits.local)
    rounded = np.round(rate / _STEP_BYTES_PER_S) * _STEP_BYTES_PER_S
    table = np.column_stack([visits.nodes_of_group, local, rounded])
    different, index = np.unique(table, axis=0, return_inverse=True)
    found = [Ring(ranks, int(nodes), int(most), float(r)) for nodes, most, r in different]
    return index.reshape(-1), found


def _rates_within(node: Node, visits: Visits) -> NDArray[np.float64]:
    """The least rate of each group inside its nodes; infinite where it has one device in each."""
    rates = np.full(visits.groups, np.inf)
    several = np.flatnonzero(visits.local > 1)
    if not several.size:
        return rates
    rows = several[np.lexsort((visits.devices[several], visits.node[several]))]
    first_of_node = np.flatnonzero(np.diff(visits.node[rows], prepend=-1))
    known: dict[bytes, NDArray[np.float64]] = {}
    per_row = np.empty(len(rows))
    for start, end in zip(first_of_node, [*first_of_node[1:], len(rows)], strict=True):
        masks = visits.devices[rows[start:end]]
        pattern = masks.tobytes()
        if pattern not in known:
            groups = tuple(devices_in(mask) for mask in masks.tolist())
            known[pattern] = np.array(packed_rings(node, groups)) * node.links.bytes_per_s
        per_row[start:end] = known[pattern]
    np.minimum.at(rates, visits.group[rows], per_row)
    return rates
