"""The flows that rings across nodes send, and the links that each of them crosses.

A ring has as many channels as it has NICs in a node, and one channel is one flow: it leaves
every node that the ring visits through one NIC and enters the next by one. Both directions of a
NIC carry the same, so it counts as one link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.network import Network
from topologies.routing.group_nodes import Visits, different
from topologies.routing.routes import Crossings, Hops, fair_rates
from topologies.routing.wiring import wiring


@dataclass(frozen=True, eq=False)
class _Channels:
    """One row per visit and channel: its row of visits, the flow it belongs to, its NIC."""

    visit: Indices
    flow: Indices
    nic: Indices
    group_of_flow: Indices


def ring_rates_across(network: Network, visits: Visits) -> NDArray[np.float64]:
    """Bytes/s of each group's ring over the network, and over its NICs alone, (2, groups); infinite
    for groups inside one node.

    All rings run at once and share NICs and the links between switches by max-min fairness.
    Not modelled: the links inside a dragonfly group, which have a capacity above what its NICs
    inject.
    """
    rates = np.full((2, visits.groups), np.inf)
    across = visits.nodes_of_group > 1
    if not across.any():
        return rates
    channels = _channels(network, visits, across)
    hops = _hops(visits, channels)
    wires = wiring(network)
    link = wires.nic_link(hops.node, hops.nic)
    ends = Crossings(hops.flow, link, np.full(wires.nic_links, wires.nic_bytes_per_s))
    flow_rates = fair_rates(network, hops, ends, len(channels.group_of_flow))
    nic_rates = np.maximum(ends.rates(len(channels.group_of_flow)), flow_rates)
    for row, of_flow in enumerate((flow_rates, nic_rates)):
        sums = np.bincount(channels.group_of_flow, weights=of_flow, minlength=visits.groups)
        rates[row, across] = sums[across]
    return rates


def _hops(visits: Visits, channels: _Channels) -> Hops:
    """Each channel's hop from one visit to the next, where it enters by its NIC there."""
    start = np.searchsorted(channels.visit, np.arange(len(visits.group)))
    first_of_own = start[channels.visit]
    offset = np.arange(len(channels.visit)) - first_of_own
    arrival = start[visits.following[channels.visit]] + offset
    return Hops(
        flow=channels.flow,
        node=visits.node[channels.visit],
        nic=channels.nic,
        next_node=visits.node[channels.visit[arrival]],
        next_nic=channels.nic[arrival],
    )


def _channels(network: Network, visits: Visits, across: NDArray[np.bool_]) -> _Channels:
    """Channels of the groups across nodes: as many as the most NICs that a group has in a node."""
    rows = np.flatnonzero(across[visits.group])
    sets, pattern = different(visits.devices[rows])
    nics = [_nics_of(network, visits.devices_in(which)) for which in sets.tolist()]
    table = np.array([[own[c % len(own)] for c in range(network.node.nics.count)] for own in nics])
    number = np.array([len(own) for own in nics])[pattern]
    per_group = np.zeros(visits.groups, dtype=np.int64)
    np.maximum.at(per_group, visits.group[rows], number)
    first_flow = np.cumsum(per_group) - per_group
    repeats = per_group[visits.group[rows]]
    row = np.repeat(np.arange(len(rows)), repeats)
    channel = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    visit = rows[row]
    return _Channels(
        visit=visit,
        flow=first_flow[visits.group[visit]] + channel,
        nic=table[pattern[row], channel],
        group_of_flow=np.repeat(np.arange(visits.groups), per_group),
    )


def _nics_of(network: Network, devices: tuple[int, ...]) -> list[int]:
    return sorted({network.node.nics.of_device[device] for device in devices})
