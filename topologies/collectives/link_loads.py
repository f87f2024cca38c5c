"""How much the links carry while groups of ranks pass data round their rings, or to all members.

Every member of a group sends as much to the next one in its ring. Inside a node the ring takes the
fewest links that join its devices, all such ways alike; from node to node it leaves by all NICs
that its devices hang on alike. Where members send to all others, each does by one shortest way
inside its node and by its own NIC to others. Not modelled: detours of adaptive routing between
groups, so bytes between switches are those of the straight way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.interconnect import Dragonfly, FatTree
from topologies.hardware.node import Node
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from topologies.routing.group_nodes import Visits, visits_of
from topologies.routing.pair_flows import pairs_on_links, ranks_on_nics
from topologies.routing.ring_packing import shortest_paths
from topologies.routing.wiring import wiring

Link = tuple[int, int]
SWITCH = -1  # stands for the switch inside a node, where there is one
MOST_ORDERS = 8  # members up to which every order of a ring is tried


@record(slots=False)
class RingTraffic:
    """Groups over some axes, (groups, p) ranks in ring order, and what each member sends on: to the
    next one, or with `pairs` in equal parts to all others."""

    axes: str
    members: Indices
    hop_bytes: float
    pairs: bool = False

    @property
    def pair_bytes(self) -> float:
        """What one member sends to each other one."""
        return self.hop_bytes / (int(self.members.shape[1]) - 1)


@record(slots=False)
class Load:
    """Bytes over a sort of link, of the mean and of the busiest one that is used at all, and what
    one of them carries in a second, per direction."""

    words: str
    mean_bytes: float
    most_bytes: float
    bytes_per_s: float

    def busy(self, seconds: float) -> float:
        """The share of so many seconds in which the busiest link is in use."""
        return self.most_bytes / self.bytes_per_s / seconds


@record(slots=False)
class LinkLoads:
    """Bytes in one direction: over each link of a mean node, over each of its NICs, and by sort."""

    links: Mapping[Link, float]
    nics: tuple[float, ...]
    sorts: tuple[Load, ...]


def link_loads(machine: Machine, placement: Placement, traffic: Sequence[RingTraffic]) -> LinkLoads:
    """What the links carry for all of this traffic together."""
    busy = [(each, visits_of(placement, each.members)) for each in traffic if _moves(each)]
    nodes = len(np.unique(placement.node))
    links: dict[Link, float] = {}
    nics = np.zeros((int(placement.node.max()) + 1, machine.node.nics.count))
    for each, visits in busy:
        inside = _pairs_inside if each.pairs else _inside
        sent_bytes = each.pair_bytes if each.pairs else each.hop_bytes
        for link, nbytes in inside(machine.node, visits, sent_bytes).items():
            links[link] = links.get(link, 0.0) + nbytes / nodes
        (_add_pairs if each.pairs else _add_nics)(machine, visits, sent_bytes, nics)
    sorts = [*_link_sorts(machine.node, links), *_nic_sort(machine, nics)]
    return LinkLoads(
        links,
        tuple((nics.sum(axis=0) / nodes).tolist()),
        (*sorts, *_switch_sort(machine, busy)),
    )


def _moves(traffic: RingTraffic) -> bool:
    return traffic.hop_bytes > 0 and traffic.members.shape[1] > 1


def _inside(node: Node, visits: Visits, hop_bytes: float) -> dict[Link, float]:
    """Bytes over each link, in its busier direction, summed over all nodes."""
    across = visits.nodes_of_group[visits.group] > 1
    table = np.column_stack([visits.devices, across])
    patterns, counts = np.unique(table, axis=0, return_counts=True)
    result: dict[Link, float] = {}
    for (which, leaves), count in zip(patterns.tolist(), counts.tolist(), strict=True):
        devices = visits.devices_in(which)
        hops = len(devices) - (1 if leaves else 0)
        if len(devices) < 2:
            continue
        for link, share in ring_shares(node, devices).items():
            nbytes = count * hop_bytes * share * hops / len(devices)
            result[link] = result.get(link, 0.0) + nbytes
    return result


def _pairs_inside(node: Node, visits: Visits, pair_bytes: float) -> dict[Link, float]:
    """Bytes over each link, in its busier direction, summed over all nodes, where the devices of
    each group in a node all send to each other."""
    counts = np.bincount(visits.devices, minlength=len(visits.sets))
    each = (pairs_on_links(node, visits.devices_in(which)) for which in range(len(counts)))
    ways = pair_bytes * sum(count * pairs for count, pairs in zip(counts, each, strict=True))
    busier = np.triu(np.maximum(ways, ways.T))
    links = {(int(a), int(b)): float(busier[a, b]) for a, b in np.argwhere(busier)}
    switched = {(a, SWITCH): nbytes for (a, b), nbytes in links.items() if b == node.devices}
    direct = {link: nbytes for link, nbytes in links.items() if link[1] < node.devices}
    return switched if node.links.switch else direct


def ring_shares(node: Node, devices: tuple[int, ...]) -> dict[Link, float]:
    """How often a hop of the devices' ring crosses each link in either direction, taken as half
    of both, over all rings of the fewest links."""
    if node.links.switch:
        return {(device, SWITCH): 1.0 for device in devices}
    paths = shortest_paths(node)
    orders = list(_orders(devices))
    lengths = [sum(len(paths[hop][0]) - 1 for hop in _hops(order)) for order in orders]
    fewest = min(lengths)
    best = [order for order, n in zip(orders, lengths, strict=True) if n == fewest]
    shares: dict[Link, float] = {}
    for order in best:
        for hop in _hops(order):
            for path in paths[hop]:
                for a, b in pairwise(path):
                    link = min(a, b), max(a, b)
                    share = 0.5 / len(best) / len(paths[hop])
                    shares[link] = shares.get(link, 0.0) + share
    return shares


def _orders(devices: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(devices) > MOST_ORDERS:
        return [devices]
    return [(devices[0], *rest) for rest in permutations(devices[1:])]


def _hops(order: tuple[int, ...]) -> list[Link]:
    return list(pairwise((*order, order[0])))


def _add_nics(
    machine: Machine, visits: Visits, hop_bytes: float, nics: NDArray[np.float64]
) -> None:
    leaves = visits.nodes_of_group[visits.group] > 1
    for which in np.unique(visits.devices[leaves]).tolist():
        own = sorted({machine.node.nics.of_device[d] for d in visits.devices_in(which)})
        nodes = visits.node[leaves & (visits.devices == which)]
        for nic in own:
            np.add.at(nics, (nodes, nic), hop_bytes / len(own))


def _add_pairs(
    machine: Machine, visits: Visits, pair_bytes: float, nics: NDArray[np.float64]
) -> None:
    ranks = np.bincount(visits.group, weights=visits.local, minlength=visits.groups)
    away = ranks[visits.group] - visits.local
    sent = ranks_on_nics(machine.node, visits)[visits.devices] * away[:, None] * pair_bytes
    np.add.at(nics, visits.node, sent)


def _link_sorts(node: Node, links: Mapping[Link, float]) -> list[Load]:
    one = node.link_bytes_per_s
    if node.links.switch:
        found = [nbytes for nbytes in links.values() if nbytes]
        words = "links to the node's switch"
        return [_load(words, found, node.device_bytes_per_s)] if found else []
    counts = node.link_counts()
    result = []
    for count in sorted(set(counts.values()), reverse=True):
        found = [links.get(link, 0.0) for link, n in counts.items() if n == count]
        words = f"{count} link{'s' if count > 1 else ''} inside the node"
        result.append(_load(words, found, count * one))
    return result


def _nic_sort(machine: Machine, nics: NDArray[np.float64]) -> list[Load]:
    used = nics[nics > 0]
    return [_load("NICs", used.tolist(), machine.node.nics.bytes_per_s)] if used.size else []


def _switch_sort(machine: Machine, busy: Sequence[tuple[RingTraffic, Visits]]) -> list[Load]:
    """The bundles between a dragonfly's groups, or the uplinks of a fat tree's leaves."""
    fabric, wires = machine.interconnect, wiring(machine.network)
    if not isinstance(fabric, Dragonfly | FatTree):
        return []
    ends = fabric.groups if isinstance(fabric, Dragonfly) else fabric.units
    nbytes = np.zeros((ends, ends))
    for each, visits in busy:
        here, there = wires.group[visits.node], wires.group[visits.node[visits.following]]
        if each.pairs:
            ranks = np.zeros((visits.groups, ends))
            np.add.at(ranks, (visits.group, here), visits.local)
            nbytes += ranks.T @ ranks * each.pair_bytes
        else:
            np.add.at(nbytes, (here, there), each.hop_bytes)
    np.fill_diagonal(nbytes, 0.0)
    if not nbytes.any():
        return []
    if isinstance(fabric, Dragonfly):
        used = nbytes[nbytes > 0].tolist()
        return [_load("links between two groups", used, fabric.bundle_bytes_per_s)]
    up = (nbytes.sum(axis=1) / fabric.rails)[nbytes.any(axis=1)].tolist()
    return [_load("uplinks of a leaf", up, fabric.uplinks_per_leaf * fabric.link_bytes_per_s)]


def _load(words: str, nbytes: Sequence[float], bytes_per_s: float) -> Load:
    return Load(words, sum(nbytes) / len(nbytes), max(nbytes), bytes_per_s)
