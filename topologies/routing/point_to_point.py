"""Rates of flows between pairs of ranks, all at once: pipelines, all-to-all, any traffic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.node import Node
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.routing.ring_packing import Paths, shortest_paths
from topologies.routing.routes import Crossings, Hops, fair_rates, hops_between
from topologies.routing.wiring import wiring
from topologies.session import session_cached

Rates = NDArray[np.float64]


def flow_rates(machine: Machine, placement: Placement, source: Indices, target: Indices) -> Rates:
    """Bytes/s of a flow from each rank of `source` to that of `target`, all at once.

    Max-min fair over the links inside nodes, NICs (either direction has its own rate) and the
    links between switches; infinite for a flow to itself. Devices without a direct link copy in
    stages over one shortest path, and over the host where no links lead. Not
    modelled: a choice among shortest paths by load, and the way from a device to its NIC.
    """
    rates = np.full(len(source), np.inf)
    moving = np.flatnonzero(source != target)
    source, target = source[moving], target[moving]
    if not moving.size:
        return rates
    ends_of = [(placement.node[ranks], placement.device[ranks]) for ranks in (source, target)]
    (node, device), (next_node, next_device) = ends_of
    across = node != next_node
    inside = _inside(machine, node[~across], device[~across], next_device[~across])
    flow = np.arange(len(moving))
    inner = Crossings(flow[~across][inside.flow], inside.link, inside.capacity)
    nic_of = np.array(machine.node.nics.of_device or [0] * machine.devices_per_node)
    hops = Hops(
        flow=flow[across],
        node=node[across],
        nic=nic_of[device[across]],
        next_node=next_node[across],
        next_nic=nic_of[next_device[across]],
    )
    ends = inner.joined(_ends(machine, hops))
    between = hops_between(machine.network, hops)
    rates[moving] = fair_rates(machine.network, between, ends, len(moving))
    return rates


def _ends(machine: Machine, hops: Hops) -> Crossings:
    wires = wiring(machine.network)
    out = wires.nic_link(hops.node, hops.nic)
    into = wires.nic_links + wires.nic_link(hops.next_node, hops.next_nic)
    capacity = np.full(2 * wires.nic_links, wires.nic_bytes_per_s)
    return Crossings(np.append(hops.flow, hops.flow), np.append(out, into), capacity)


def _inside(machine: Machine, node: Indices, device: Indices, to: Indices) -> Crossings:
    """The links inside nodes that flows between two devices of one node cross."""
    arcs, used, capacity = arcs_of(machine.node)
    first, count = used[0][device, to], used[1][device, to]
    flow = np.repeat(np.arange(len(node)), count)
    offset = np.arange(len(flow)) - np.repeat(np.cumsum(count) - count, count)
    link = node[flow] * len(capacity) + arcs[first[flow] + offset]
    return Crossings(flow, link, np.tile(capacity, machine.nodes))


@session_cached(16)
def arcs_of(node: Node) -> tuple[Indices, tuple[Indices, Indices], Rates]:
    """All paths' arcs one after another, each pair's first and number, and what arcs carry."""
    n = node.devices
    capacity = np.zeros((n + 1, n + 1))
    capacity[n, :n] = capacity[:n, n] = node.device_bytes_per_s or node.host.bytes_per_s
    for (a, b), links in node.link_counts().items():
        capacity[a, b] = capacity[b, a] = links * node.link_bytes_per_s
    paths: Paths = {(a, b): [(a, n, b)] for a in range(n) for b in range(n) if a != b}
    paths |= {pair: found for pair, found in shortest_paths(node).items() if pair[0] != pair[1]}
    first, count = np.zeros((n, n), dtype=np.int64), np.zeros((n, n), dtype=np.int64)
    arcs: list[int] = []
    for pair, (path, *_) in paths.items():
        first[pair], count[pair] = len(arcs), len(path) - 1
        arcs.extend(a * (n + 1) + b for a, b in pairwise(path))
    return np.array(arcs, dtype=np.int64), (first, count), capacity.reshape(-1)
