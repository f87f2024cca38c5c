"""How many switches a hop between two nodes passes, and what those beyond the first cost.

What the measured curves contain: nobody recorded where their jobs ran. The fit places them on the
first nodes, side by side, so their hops count as passing one switch each. Every further switch
adds its latency. On a machine whose benchmarks ran scattered, this counts some of it twice.

How much of the effect of placement that explains: hardly any. A hop of Frontier's rings takes 45
to 250 us and three more switches 1 us, so scattering costs collectives bound by latency 0.4 to
2 %, and a step of GPT-20B on 512 GCDs (z=16, data=32) less than 0.001 %. That job's 102 measured
runs (hpcgroup/perf-variability@508e33a) rise by 1.0 % from one group to 64, on a straight line
about which they spread by 0.8 %. The rest is other jobs' traffic, for which
`interconnect.background` stands, and noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.hardware.interconnect import Dragonfly, FatTree, Interconnect
from topologies.network import Network
from topologies.routing.group_nodes import Visits
from topologies.routing.wiring import wiring


def further_seconds(network: Network, visits: Visits) -> float:
    """What distance adds to each hop of the rings of an axis: their mean over the ring's hops.

    The farthest group counts for all of its axis: who works in step waits for it, and ranks that
    are alike stay alike. Zero where no group leaves its node.
    """
    rows = np.flatnonzero(visits.nodes_of_group[visits.group] > 1)
    fabric = network.interconnect
    if not rows.size or not isinstance(fabric, Dragonfly | FatTree):
        return 0.0
    passed = switches_between(network, visits.node[rows], visits.node[visits.following[rows]])
    group = visits.group[rows]
    sums = np.bincount(group, weights=passed - 1.0)
    counts = np.bincount(group)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    return float(mean.max()) * fabric.switch_latency_s


def pairs_further_seconds(network: Network, visits: Visits) -> float:
    """What distance adds to each hop between nodes of a group: the mean of all pairs, by counts of
    its nodes in each place.

    Of N nodes, n on a switch and g in a group of switches, n (n - 1) ordered pairs share the
    switch, g (g - 1) less those the group, and the rest of N (N - 1) neither.
    """
    fabric = network.interconnect
    nodes = visits.nodes_of_group.astype(np.float64)
    if nodes.max() == 1 or not isinstance(fabric, Dragonfly | FatTree):
        return 0.0
    wires = wiring(network)
    inside, between = _passed(fabric)
    on_switch = _pairs_in(visits, wires.switch[visits.node, 0])
    in_group = _pairs_in(visits, wires.group[visits.node])
    every = nodes * (nodes - 1)
    passed = (in_group - on_switch) * (inside - 1) + (every - in_group) * (between - 1)
    means = np.divide(passed, every, out=np.zeros_like(passed), where=every > 0)
    return fabric.switch_latency_s * float(means.max())


def _pairs_in(visits: Visits, place: Indices) -> NDArray[np.float64]:
    """The ordered pairs of each group's nodes that are in one place."""
    span = int(place.max()) + 1
    key, count = np.unique(visits.group * span + place, return_counts=True)
    pairs = np.bincount(key // span, weights=count * (count - 1.0), minlength=visits.groups)
    return pairs.astype(np.float64)


def switches_between(network: Network, node: Indices, to: Indices) -> NDArray[np.float64]:
    """The switches that a minimal route passes between NICs of one index on different nodes.

    One, where they hang on the same switch; two in a dragonfly group, three in a fat tree. From
    group to group it is two where the sender's switch has a link to the other group and that link
    ends on the receiver's, and one more for each of the two that is not so. Not modelled: detours,
    and the length of cables.
    """
    wires = wiring(network)
    same = wires.switch[node, 0] == wires.switch[to, 0]
    apart = wires.group[node] != wires.group[to]
    inside, between = _passed(network.interconnect)
    return np.where(same, 1.0, np.where(apart, between, inside))


def _passed(fabric: Interconnect) -> tuple[float, float]:
    """Switches on the way to another switch of the group, and to another group."""
    if isinstance(fabric, FatTree):
        return 3.0, 3.0
    if isinstance(fabric, Dragonfly):
        share = min(1.0, fabric.global_links / fabric.switches_per_group)
        return 2.0, 2.0 + 2 * (1 - share)
    return 1.0, 1.0
