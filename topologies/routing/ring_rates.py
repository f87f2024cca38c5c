"""What the groups of some axes get of the links inside nodes and between them, for rings and for
flows between all pairs of their members."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.node import Node
from topologies.network import Network
from topologies.placement import Placement
from topologies.routing.flows import Sent, rates_across, rings_across
from topologies.routing.group_nodes import Visits, together, visits_of
from topologies.routing.hop_latency import further_seconds, pairs_further_seconds
from topologies.routing.pair_flows import pair_rates_within, pairs_across
from topologies.routing.ring_packing import packed_rings
from topologies.session import session_cached

Rates = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AxisGroups:
    """The groups of an axis, (groups, p), as the key of a cache: equal arrays are equal.

    With `pairs` each member sends to each other, else to the next one of its group's ring.
    """

    members: Indices
    pairs: bool = False

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
        shape = repr((self.members.shape, self.pairs)).encode()
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
    further = (pairs_further_seconds if axis.pairs else further_seconds)(network, visits)
    return Reach(visits.nodes_of_group, most, further)


@session_cached(64)
def _visits(placement: Placement, axis: AxisGroups) -> Visits:
    return visits_of(placement, axis.members)


def pair_links(node: Node, placement: Placement, axis: AxisGroups) -> Indices:
    """The links that join the two devices of each ring of two in one node; -1 for other groups."""
    members = axis.members
    if members.shape[1] != 2 or node.links.switch or axis.pairs:
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
    rates = [
        # Pairs in a node need nothing of those between nodes; a ring is one through all of them.
        np.stack(2 * [np.where(axis.pairs & (part.nodes_of_group > 1), np.inf, rate)])
        for axis, part, rate in zip(
            axes, visits, rates_within(network.node, placement, axes), strict=True
        )
    ]
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
    if not axes:
        return ()
    sent = [_sent(network, placement, axis) for axis in axes]
    return tuple(rates_across(network, sent))


@session_cached(64)
def _sent(network: Network, placement: Placement, axis: AxisGroups) -> Sent:
    return (pairs_across if axis.pairs else rings_across)(network, _visits(placement, axis))


@session_cached(256)
def rates_within(
    node: Node, placement: Placement, axes: tuple[AxisGroups, ...]
) -> tuple[Rates, ...]:
    """The rates by axis of all groups inside their nodes, packed together.

    Beside other axes, pairs keep the share of their links that rings of their groups would keep.
    """
    if not axes:
        return ()
    visits = [_visits(placement, axis) for axis in axes]
    packed = _rates_in_nodes(node, together(visits), _ring_rates)
    rates = np.split(packed, np.cumsum([part.groups for part in visits])[:-1])
    return tuple(
        _pairs_within(node, part, rate) if axis.pairs else rate
        for axis, part, rate in zip(axes, visits, rates, strict=True)
    )


def _pairs_within(node: Node, visits: Visits, ring: Rates) -> Rates:
    """What each device sends to the others of its node, where rings would get so much."""
    pair = _rates_in_nodes(node, visits, pair_rates_within)
    alone = _rates_in_nodes(node, visits, _ring_rates)
    ranks = np.bincount(visits.group, weights=visits.local, minlength=visits.groups)
    peers = ranks / visits.nodes_of_group - 1
    several = np.isfinite(pair)
    rates = np.full(visits.groups, np.inf)
    kept = np.minimum(ring[several] / alone[several], 1.0)
    rates[several] = pair[several] * kept * peers[several]
    return rates


def _ring_rates(node: Node, groups: tuple[tuple[int, ...], ...]) -> Rates:
    return np.array(packed_rings(node, groups)) * node.link_bytes_per_s


def _rates_in_nodes(
    node: Node, visits: Visits, of_groups: Callable[[Node, Any], Sequence[float] | Rates]
) -> Rates:
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
            known[pattern] = np.asarray(of_groups(node, groups))
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
