"""Routing: which links between switches the hops of flows cross, and what these can carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.interconnect import Dragonfly, FatTree
from topologies.network import Network
from topologies.routing.adaptive_routing import granted
from topologies.routing.max_min import max_min_rates
from topologies.routing.wiring import Wiring, wiring

Rates = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Hops:
    """One row per hop of a flow between two nodes: out by a NIC of one, in by a NIC of the other.

    A ring's flow has many hops and its slowest one is its rate.
    """

    flow: Indices
    node: Indices
    nic: Indices
    next_node: Indices
    next_nic: Indices


@dataclass(frozen=True, eq=False)
class Crossings:
    """Entry e says that flow[e] crosses link[e]; `capacity` is per link, in bytes/s."""

    flow: Indices
    link: Indices
    capacity: Rates

    def joined(self, other: Crossings) -> Crossings:
        """Both together, the other's links numbered after these."""
        return Crossings(
            np.append(self.flow, other.flow),
            np.append(self.link, other.link + len(self.capacity)),
            np.append(self.capacity, other.capacity),
        )

    def rates(self, flows: int) -> Rates:
        """The max-min fair rates of flows 0 to flows - 1, each of which crosses a link."""
        used = np.bincount(self.link, minlength=len(self.capacity)) > 0
        link = (np.cumsum(used) - 1)[self.link]
        return max_min_rates(self.flow, link, self.capacity[used], flows)


def fair_rates(network: Network, hops: Hops, ends: Crossings, flows: int) -> Rates:
    """The rates of flows that cross NICs and other links at their `ends`, and the switches.

    On an adaptive dragonfly, what the ends would let through is the demand that routing spreads
    over the bundles; what it then grants to a pair of groups is shared by the flows of that pair.
    """
    fabric = network.interconnect
    wires = wiring(network)
    if isinstance(fabric, FatTree):
        return ends.joined(_up_and_down(fabric, wires, hops)).rates(flows)
    if not isinstance(fabric, Dragonfly):
        return ends.rates(flows)
    bundle = fabric.bundle_bytes_per_s * (1 - fabric.background)
    here, there = wires.group[hops.node], wires.group[hops.next_node]
    flow, pair = hops.flow, here * fabric.groups + there
    leaves = here != there
    flow, pair = flow[leaves], pair[leaves]
    if fabric.routing == "minimal":
        straight = Crossings(flow, pair, np.full(fabric.groups**2, bundle))
        return ends.joined(straight).rates(flows)
    rates = ends.rates(flows)
    demand: Rates = np.bincount(pair, weights=rates[flow], minlength=fabric.groups**2).astype(float)
    limit = granted(demand.reshape(fabric.groups, fabric.groups), bundle).reshape(-1)
    tight = (limit < demand * (1 - 1e-9))[pair]
    if not tight.any():
        return rates
    return ends.joined(Crossings(flow[tight], pair[tight], limit)).rates(flows)


def _up_and_down(fabric: FatTree, wires: Wiring, hops: Hops) -> Crossings:
    """Hops between leaves cross the uplinks of the first and the downlinks of the second."""
    up = wires.switch[hops.node, hops.nic]
    down = wires.switch[hops.next_node, hops.next_nic]
    rises = up != down
    flow = hops.flow[rises]
    link = np.append(up[rises], fabric.leaves + down[rises])
    uplinks = fabric.uplinks_per_leaf * fabric.link_bytes_per_s * (1 - fabric.background)
    return Crossings(np.append(flow, flow), link, np.full(2 * fabric.leaves, uplinks))
