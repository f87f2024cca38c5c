"""What an all-to-all loads on the links: every pair of a group's members is a flow.

The flows are counted and never listed. All pairs of a group carry as much, and the collective is
over when the last of them is, so a group goes at the pace of its slowest pair: it is one flow of
the max-min allocation, which crosses a link as often as pairs of its members do. Where no group
slows another this way and a pair's own fair share differ, the slowest pair of all groups gets the
same: the fullest link decides in both.

Cost: of each group one entry for each of its NICs and for each two groups of a dragonfly (or leaves
of a fat tree) that it reaches, in place of p (p - 1) pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.interconnect import Dragonfly, FatTree
from topologies.hardware.node import Node
from topologies.network import Network
from topologies.routing.flows import Sent
from topologies.routing.group_nodes import Visits
from topologies.routing.max_min import max_min_rates
from topologies.routing.point_to_point import arcs_of
from topologies.routing.routes import Crossings, between_capacity
from topologies.routing.wiring import wiring
from topologies.session import session_cached

Rates = NDArray[np.float64]


def pairs_across(network: Network, visits: Visits) -> Sent:
    """The flows of an axis between nodes, one for each group that has several.

    A rank sends to all members in other nodes by its own NIC, and receives as much. Weights are
    pairs over those of the axis on its busiest NIC, so that there a group counts as one flow, as a
    ring of another axis does. Its rate is that of a mean node: L (p - L) pairs.

    Not modelled: the ways of NCCL by which a rank sends over another's NIC (PXN).
    """
    across = visits.nodes_of_group > 1
    rows = np.flatnonzero(across[visits.group])
    flow = (np.cumsum(across) - 1)[visits.group[rows]]
    ranks = np.bincount(flow, weights=visits.local[rows])
    away = ranks[flow] - visits.local[rows]
    on_nic = ranks_on_nics(network.node, visits)[visits.devices[rows]]
    entry, nic = np.nonzero(on_nic)
    weight = (on_nic * away[:, None])[entry, nic]
    wires = wiring(network)
    link = wires.nic_link(visits.node[rows][entry], nic)
    most = float(weight.max())
    capacity = np.full(wires.nic_links, wires.nic_bytes_per_s)
    ends = Crossings(flow[entry], link, capacity, weight / most)
    between = _between(network, visits, rows, flow, on_nic)
    per_node = ranks / visits.nodes_of_group[across]
    return Sent(
        ends=ends,
        between=Crossings(between.flow, between.link, between.capacity, between.weights / most),
        group=np.flatnonzero(across),
        factor=per_node * (ranks - per_node) / most,
        groups=visits.groups,
    )


def ranks_on_nics(node: Node, visits: Visits) -> Rates:
    """How many of each set's devices hang on each NIC, (sets, NICs)."""
    of_device = np.array(node.nics.of_device)
    counts = [
        np.bincount(of_device[list(visits.devices_in(which))], minlength=node.nics.count)
        for which in range(len(visits.sets))
    ]
    return np.array(counts, dtype=np.float64)


def _between(
    network: Network, visits: Visits, rows: Indices, flow: Indices, on_nic: Rates
) -> Crossings:
    """How many pairs cross each bundle of a dragonfly, or each leaf's uplinks of a fat tree."""
    fabric, wires = network.interconnect, wiring(network)
    capacity = between_capacity(network)
    if isinstance(fabric, Dragonfly):
        here = wires.group[visits.node[rows]]
        at, count = _summed(flow * fabric.groups + here, visits.local[rows])
        return _bundles(at // fabric.groups, at % fabric.groups, count, fabric.groups, capacity)
    if not isinstance(fabric, FatTree):
        nothing = np.zeros(0, dtype=np.int64)
        return Crossings(nothing, nothing, capacity, np.zeros(0))
    entry, nic = np.nonzero(on_nic)
    leaf = wires.switch[visits.node[rows][entry], nic]
    here, own = _summed(entry * fabric.leaves + leaf, on_nic[entry, nic])  # a node's on a leaf
    entry, leaf = here // fabric.leaves, here % fabric.leaves
    at, every = _summed(flow[entry] * fabric.leaves + leaf, own)  # and of a whole group on it
    group_on_leaf = every[np.searchsorted(at, flow[entry] * fabric.leaves + leaf)]
    size = np.bincount(flow, weights=visits.local[rows])[flow[entry]]
    # A rank's peers beyond its leaf: all but those of its node and those of other nodes on it.
    beyond = size - visits.local[rows][entry] - (group_on_leaf - own)
    at, weight = _summed(flow[entry] * fabric.leaves + leaf, own * beyond)
    links = np.append(at % fabric.leaves, fabric.leaves + at % fabric.leaves)
    flows = np.tile(at // fabric.leaves, 2)
    kept = np.tile(weight > 0, 2)
    return Crossings(flows[kept], links[kept], capacity, np.tile(weight, 2)[kept])


def _bundles(flow: Indices, group: Indices, ranks: Rates, groups: int, full: Rates) -> Crossings:
    """The pairs between each two groups of a dragonfly: the product of the ranks in them.

    The rows are sorted by flow; those of one flow are each other's partners.
    """
    number = np.bincount(flow)[flow]
    first = np.searchsorted(flow, flow)
    here = np.repeat(np.arange(len(flow)), number)
    start = np.cumsum(number) - number
    there = np.repeat(first - start, number) + np.arange(len(here))
    apart = here != there
    here, there = here[apart], there[apart]
    pair = group[here] * groups + group[there]
    return Crossings(flow[here], pair, full, ranks[here] * ranks[there])


def _summed(key: Indices, value: Indices | Rates) -> tuple[Indices, Rates]:
    """The different keys in order, and the sum of the values of each."""
    found, which = np.unique(key, return_inverse=True)
    return found, np.bincount(which.reshape(-1), weights=value).astype(np.float64)


@session_cached(4096)
def pair_rates_within(node: Node, groups: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
    """Bytes/s of each pair of devices of some groups in one node, all pairs at once.

    A pair's flow takes its direct links, else one shortest path over them, or the host.
    """
    _, _, capacity = arcs_of(node)
    loads = np.stack([_on_arcs(node, group) for group in groups])
    flow, link = np.nonzero(loads)
    rates = max_min_rates(flow, link, capacity, len(groups), loads[flow, link])
    return tuple(rates.tolist())


def pairs_on_links(node: Node, devices: tuple[int, ...]) -> Rates:
    """How many ordered pairs of some devices of a node send over the link from one device to
    another; behind the last device stands the switch, or the host where there is none."""
    return _on_arcs(node, devices).reshape(node.devices + 1, -1)


def _on_arcs(node: Node, group: tuple[int, ...]) -> Rates:
    arcs, (first, count), capacity = arcs_of(node)
    devices = np.array(group)
    source, target = (each.reshape(-1) for each in np.meshgrid(devices, devices))
    apart = source != target
    begin, length = first[source[apart], target[apart]], count[source[apart], target[apart]]
    offset = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    crossed = arcs[np.repeat(begin, length) + offset]
    return np.bincount(crossed, minlength=len(capacity)).astype(np.float64)
