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
from topologies.routing.wiring import wiring

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
    """Entry e says that flow[e] crosses link[e], `weight[e]` times where there are weights;
    `capacity` is per link, in bytes/s."""

    flow: Indices
    link: Indices
    capacity: Rates
    weight: Rates | None = None

    @property
    def weights(self) -> Rates:
        """How often each entry's flow crosses its link."""
        return np.ones(len(self.flow)) if self.weight is None else self.weight

    def joined(self, other: Crossings) -> Crossings:
        """Both together, the other's links numbered after these."""
        return Crossings(
            np.append(self.flow, other.flow),
            np.append(self.link, other.link + len(self.capacity)),
            np.append(self.capacity, other.capacity),
            self._both_weights(other),
        )

    def and_flows(self, other: Crossings, before: int) -> Crossings:
        """These and others over the same links, whose flows are numbered after `before`."""
        return Crossings(
            np.append(self.flow, other.flow + before),
            np.append(self.link, other.link),
            self.capacity,
            self._both_weights(other),
        )

    def _both_weights(self, other: Crossings) -> Rates | None:
        if self.weight is None and other.weight is None:
            return None
        return np.append(self.weights, other.weights)

    def rates(self, flows: int) -> Rates:
        """The max-min fair rates of flows 0 to flows - 1, each of which crosses a link."""
        used = np.bincount(self.link, minlength=len(self.capacity)) > 0
        link = (np.cumsum(used) - 1)[self.link]
        return max_min_rates(self.flow, link, self.capacity[used], flows, self.weight)


def fair_rates(network: Network, between: Crossings, ends: Crossings, flows: int) -> Rates:
    """The rates of flows that cross NICs and other links at their `ends`, and the links `between`
    switches.

    On an adaptive dragonfly, what the ends would let through is the demand that routing spreads
    over the bundles; what it then grants to a pair of groups is shared by the flows of that pair.
    """
    fabric = network.interconnect
    if not isinstance(fabric, Dragonfly) or fabric.routing == "minimal":
        return ends.joined(between).rates(flows)
    rates = ends.rates(flows)
    sent = rates[between.flow] if between.weight is None else rates[between.flow] * between.weight
    loads = np.bincount(between.link, weights=sent, minlength=fabric.groups**2)
    demand, bundle = loads.astype(np.float64), float(between.capacity[0])
    limit = granted(demand.reshape(fabric.groups, fabric.groups), bundle).reshape(-1)
    tight = (limit < demand * (1 - 1e-9))[between.link]
    if not tight.any():
        return rates
    weight = None if between.weight is None else between.weight[tight]
    full = Crossings(between.flow[tight], between.link[tight], limit, weight)
    return ends.joined(full).rates(flows)


def between_capacity(network: Network) -> Rates:
    """What the links between switches carry: the bundle of each two groups of a dragonfly, row by
    row; the uplinks of each leaf of a fat tree, and behind them all downlinks."""
    fabric = network.interconnect
    if isinstance(fabric, Dragonfly):
        bundle = fabric.bundle_bytes_per_s * (1 - fabric.background)
        return np.full(fabric.groups**2, bundle)
    if isinstance(fabric, FatTree):
        uplinks = fabric.uplinks_per_leaf * fabric.link_bytes_per_s * (1 - fabric.background)
        return np.full(2 * fabric.leaves, uplinks)
    return np.zeros(0)


def hops_between(network: Network, hops: Hops) -> Crossings:
    """The links between switches that hops cross: a bundle, or the uplinks of the first leaf and
    the downlinks of the second."""
    fabric, wires, capacity = network.interconnect, wiring(network), between_capacity(network)
    if isinstance(fabric, Dragonfly):
        here, there = wires.group[hops.node], wires.group[hops.next_node]
        leaves = here != there
        return Crossings(hops.flow[leaves], (here * fabric.groups + there)[leaves], capacity)
    if isinstance(fabric, FatTree):
        up = wires.switch[hops.node, hops.nic]
        down = wires.switch[hops.next_node, hops.next_nic]
        rises = up != down
        flow, link = hops.flow[rises], np.append(up[rises], fabric.leaves + down[rises])
        return Crossings(np.append(flow, flow), link, capacity)
    nothing = np.zeros(0, dtype=np.int64)
    return Crossings(nothing, nothing, capacity)
