"""The flows that rings across nodes send, and the links that each of them crosses.

A ring has as many channels as it has NICs in a node, and one channel is one flow: it leaves
every node that the ring visits through one NIC and enters the next by one. Both directions of a
NIC carry the same, so it counts as one link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.fairness import max_min_rates
from topologies.interconnect import Dragonfly
from topologies.machine import Machine
from topologies.visits import Ints, Visits, devices_in


@dataclass(frozen=True, eq=False)
class _Channels:
    """One row per visit and channel: its row of visits, the flow it belongs to, its NIC."""

    visit: Ints
    flow: Ints
    nic: Ints
    group_of_flow: Ints


def ring_rates_across(machine: Machine, visits: Visits) -> NDArray[np.float64]:
    """Bytes/s of each group's ring over the network; infinite for groups inside one node.

    All rings run at once and share NICs and global links by max-min fairness.
    """
    rates = np.full(visits.groups, np.inf)
    across = visits.nodes_of_group > 1
    if not across.any():
        return rates
    channels = _channels(machine, visits, across)
    nics = machine.node.nics
    link = visits.node[channels.visit] * nics.count + channels.nic
    flow = channels.flow
    capacity = np.full(int(link.max()) + 1, nics.bytes_per_s)
    if isinstance(machine.interconnect, Dragonfly):
        extra = _global_links(machine.interconnect, visits, channels, len(capacity))
        flow, link = np.append(flow, extra[0]), np.append(link, extra[1])
        capacity = np.append(capacity, extra[2])
    used, link = np.unique(link, return_inverse=True)
    flows = len(channels.group_of_flow)
    flow_rates = max_min_rates(flow, link.reshape(-1), capacity[used], flows)
    sums = np.bincount(channels.group_of_flow, weights=flow_rates, minlength=visits.groups)
    rates[across] = sums[across]
    return rates


def _channels(machine: Machine, visits: Visits, across: NDArray[np.bool_]) -> _Channels:
    """Channels of the groups across nodes: as many as the most NICs that a group has in a node."""
    rows = np.flatnonzero(across[visits.group])
    masks, pattern = np.unique(visits.devices[rows], return_inverse=True)
    nics = [_nics_of(machine, int(mask)) for mask in masks]
    table = np.array([[own[c % len(own)] for c in range(machine.node.nics.count)] for own in nics])
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


def _nics_of(machine: Machine, mask: int) -> list[int]:
    return sorted({machine.node.nics.of_device[device] for device in devices_in(mask)})


def _global_links(
    fabric: Dragonfly, visits: Visits, channels: _Channels, base: int
) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Flow and link of each hop between two groups of the dragonfly, and these links' capacity.

    Minimal routes cross the bundle between the two groups. Adaptive ones spread over all
    bundles of both: then half of what leaves a group's bundles is its own, since a detour takes
    two global hops and so each group carries as much for others (Valiant routing, the worst
    case). Not modelled: traffic of other jobs, and in-group links.
    """
    switch_group = visits.node // fabric.nodes_per_group
    here = switch_group[channels.visit]
    there = switch_group[visits.following[channels.visit]]
    leaves = here != there
    here, there, flow = here[leaves], there[leaves], channels.flow[leaves]
    bundle = fabric.bundle_bytes_per_s
    if fabric.routing == "minimal":
        link = base + here * fabric.groups + there
        return flow, link, np.full(fabric.groups**2, bundle)
    spread = max(bundle, (fabric.groups - 1) * bundle / 2)
    link = np.append(base + here, base + fabric.groups + there)
    return np.append(flow, flow), link, np.full(2 * fabric.groups, spread)
