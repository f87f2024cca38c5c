"""The flows that groups across nodes send, and the links that each of them crosses.

A ring has as many channels as it has NICs in a node, and one channel is one flow: it leaves
every node that the ring visits through one NIC and enters the next by one. Both directions of a
NIC carry the same, so it counts as one link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.network import Network
from topologies.routing.group_nodes import Visits, different
from topologies.routing.routes import Crossings, Hops, fair_rates, hops_between
from topologies.routing.wiring import wiring


@dataclass(frozen=True, eq=False)
class _Channels:
    """One row per visit and channel: its row of visits, the flow it belongs to, its NIC."""

    visit: Indices
    flow: Indices
    nic: Indices
    group_of_flow: Indices


@dataclass(frozen=True, eq=False)
class Sent:
    """The flows that the groups of an axis send between nodes: the links that each crosses at its
    `ends` and `between` switches, its `group`, and the group's rate for each byte/s of it."""

    ends: Crossings
    between: Crossings
    group: Indices
    factor: NDArray[np.float64] | None
    groups: int


def rates_across(network: Network, axes: Sequence[Sent]) -> list[NDArray[np.float64]]:
    """Bytes/s of each group over the network, and over its NICs alone, (2, groups) for each axis;
    infinite for groups inside one node.

    All run at once and share NICs and the links between switches by max-min fairness. Not modelled:
    the links inside a dragonfly group, which have a capacity above what its NICs inject.
    """
    first, *others = axes
    ends, between, flows = first.ends, first.between, [0, len(first.group)]
    for each in others:
        ends = ends.and_flows(each.ends, flows[-1])
        between = between.and_flows(each.between, flows[-1])
        flows.append(flows[-1] + len(each.group))
    of_flow = fair_rates(network, between, ends, flows[-1])
    on_nics = np.maximum(ends.rates(flows[-1]), of_flow)
    both = np.stack([of_flow, on_nics])
    return [
        _of_groups(each, both[:, begin:end])
        for each, (begin, end) in zip(axes, pairwise(flows), strict=True)
    ]


def _of_groups(sent: Sent, of_flow: NDArray[np.float64]) -> NDArray[np.float64]:
    rates = np.full((2, sent.groups), np.inf)
    across = np.bincount(sent.group, minlength=sent.groups) > 0
    for row, own in enumerate(of_flow):
        weights = own if sent.factor is None else own * sent.factor
        rates[row, across] = np.bincount(sent.group, weights, sent.groups)[across]
    return rates


def rings_across(network: Network, visits: Visits) -> Sent:
    """The flows of an axis whose groups pass data round rings, where some leave their node."""
    channels = _channels(network, visits, visits.nodes_of_group > 1)
    hops = _hops(visits, channels)
    wires = wiring(network)
    link = wires.nic_link(hops.node, hops.nic)
    ends = Crossings(hops.flow, link, np.full(wires.nic_links, wires.nic_bytes_per_s))
    between = hops_between(network, hops)
    return Sent(ends, between, channels.group_of_flow, None, visits.groups)


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
