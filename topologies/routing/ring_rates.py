"""What the rings of the groups of some axes get of the links inside nodes and between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.node import Node
from topologies.network import Network
from topologies.placement import Placement
from topologies.routing.flows import ring_rates_across
from topologies.routing.group_nodes import Visits, together, visits_of
from topologies.routing.hop_latency import further_seconds
from topologies.routing.ring_packing import packed_rings
from topologies.session import session_cached

Rates = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AxisGroups:
    """The groups of an axis, (groups, p), as the key of a cache: equal arrays are equal."""

    members: Indices

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxisGroups) and self.digest == other.digest

    @property
    def are_single(self) -> bool:
        """Whether each group is one rank, which sends nothing."""
        return bool(self.members.shape[1] == 1)

    @cached_property
    def digest(self) -> bytes:
        """A digest of the array and its shape."""
        shape = repr(self.members.shape).encode()
        return sha256(shape + self.members.astype(np.int32).tobytes()).digest()


@dataclass(frozen=True, eq=False)
class Reach:
    """How many nodes each group visits, the most devices that it has in one of them, and what
    distance adds to each hop of the axis's rings."""

    nodes: Indices
    devices_per_node: Indices
    further_s: float


@session_cached(64)
def reach_of(network: Network, placement: Placement, axis: AxisGroups) -> Reach:
    """The reach of the groups of an axis."""
    visits = _visits(placement, axis)
    most = np.zeros(visits.groups, dtype=np.int64)
    np.maximum.at(most, visits.group, visits.local)
    return Reach(visits.nodes_of_group, most, further_seconds(network, visits))


@session_cached(64)
def _visits(placement: Placement, axis: AxisGroups) -> Visits:
    return visits_of(placement, axis.members)


def pair_links(node: Node, placement: Placement, members: Indices) -> Indices:
    """The links that join the two devices of each group of two in one node; -1 for other groups."""
    if members.shape[1] != 2 or node.links.switch:
        return np.full(len(members), -1)
    links = np.zeros((node.devices, node.devices), dtype=np.int64)
    for (a, b), count in node.link_counts().items():
        links[a, b] = links[b, a] = count
    of, device = placement.node[members].T, placement.device[members].T
    return np.where(of[0] == of[1], links[device[0], device[1]], -1)


@session_cached(256)
def least_rates(
    network: Network, placement: Placement, axes: tuple[AxisGroups, ...]
) -> tuple[Rates, ...]:
    """The rates of all groups by axis, and those that NICs and links in nodes alone let through,
    (2, groups) each, the least over all selections of the axes."""
    visits = [_visits(placement, axis) for axis in axes]
    rates = [np.stack([rate, rate]) for rate in rates_within(network.node, placement, axes)]
    across = [i for i, part in enumerate(visits) if len(part.group) > part.groups]
    found = _rates_across(network, placement, tuple(axes[i] for i in across))
    for i, bound in zip(across, found, strict=True):
        rates[i] = np.minimum(rates[i], bound)
    for left_out in range(len(axes) if len(axes) > 1 else 0):
        kept = [i for i in range(len(axes)) if i != left_out]
        fewer = least_rates(network, placement, tuple(axes[i] for i in kept))
        for i, bound in zip(kept, fewer, strict=True):
            rates[i] = np.minimum(rates[i], bound)
    return tuple(rates)


@session_cached(256)
def _rates_across(
    network: Network, placement: Placement, axes: tuple[AxisGroups, ...]
) -> tuple[Rates, ...]:
    """The rates by axis over the network and over its NICs alone, (2, groups) each; apart, since
    axes in a node do not change them."""
    visits = [_visits(placement, axis) for axis in axes]
    if not visits:
        return ()
    rates = ring_rates_across(network, together(visits))
    return tuple(np.split(rates, np.cumsum([part.groups for part in visits])[:-1], axis=1))


@session_cached(256)
def rates_within(
    node: Node, placement: Placement, axes: tuple[AxisGroups, ...]
) -> tuple[Rates, ...]:
    """The rates by axis of all groups inside their nodes, packed together."""
    if not axes:
        return ()
    visits = [_visits(placement, axis) for axis in axes]
    rates = _packed_rates(node, together(visits))
    return tuple(np.split(rates, np.cumsum([part.groups for part in visits])[:-1]))


def _packed_rates(node: Node, visits: Visits) -> Rates:
    """The least rate of each group inside its nodes; infinite where it has one device in each."""
    rates = np.full(visits.groups, np.inf)
    several = np.flatnonzero(visits.local > 1)
    if not several.size:
        return rates
    rows = several[np.lexsort((visits.devices[several], visits.node[several]))]
    sets = visits.devices[rows]
    per_row = np.empty(len(rows))
    known: dict[tuple[int, ...], Rates] = {}
    for entries in _nodes_alike(visits.node[rows], sets):
        pattern = tuple(sets[entries[0]].tolist())
        if pattern not in known:
            groups = tuple(visits.devices_in(which) for which in pattern)
            known[pattern] = np.array(packed_rings(node, groups)) * node.links.bytes_per_s
        per_row[entries] = known[pattern]
    np.minimum.at(rates, visits.group[rows], per_row)
    return rates


def _nodes_alike(node: Indices, sets: Indices) -> Iterator[Indices]:
    """Runs of nodes, of those with as many rows, that have the same sets: the indices of their
    rows, (nodes, rows of a node). The rows are sorted by node."""
    first = np.flatnonzero(np.diff(node, prepend=-1))
    count = np.diff(first, append=len(node))
    for size in np.flatnonzero(np.bincount(count)).tolist():
        rows = first[count == size][:, None] + np.arange(size)
        patterns = sets[rows]
        unlike = (patterns[1:] != patterns[:-1]).any(axis=1)
        yield from np.split(rows, np.flatnonzero(unlike) + 1)
