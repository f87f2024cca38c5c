"""Where every NIC of the machine plugs in, as arrays over all nodes: what routing looks up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.arrays import Indices
from topologies.hardware.interconnect import Dragonfly, FatTree, Interconnect
from topologies.network import Network
from topologies.session import session_cached


@dataclass(frozen=True, eq=False)
class Wiring:
    """`group[n]` is the dragonfly group (or fat-tree unit) of node n, `switch[n, k]` the switch of
    its NIC k, counted through the machine; `nic_bytes_per_s` is what other jobs leave of a NIC.
    """

    group: Indices
    switch: Indices
    switches: int
    nic_bytes_per_s: float

    @property
    def nics(self) -> int:
        """NICs in one node."""
        return int(self.switch.shape[1])

    def nic_link(self, node: Indices, nic: Indices) -> Indices:
        """The number of a NIC's link; those of all nodes come first among the links."""
        return np.asarray(node * self.nics + nic)

    @property
    def nic_links(self) -> int:
        """How many NICs the machine has."""
        return int(self.switch.size)


@session_cached(16)
def wiring(network: Network) -> Wiring:
    """The wiring of all nodes of a machine.

    In a dragonfly group, as many nodes as a switch has endpoints share as many switches as a node
    has NICs: on Frontier NIC k of the 16 nodes of chassis c is on switch 4c + k. Source: the OLCF
    user guide says which nodes share switches; which NIC is on which of them is assumed.
    """
    fabric, nics = network.interconnect, network.node.nics.count
    node = np.arange(network.nodes, dtype=np.int64)
    nic = np.arange(nics, dtype=np.int64)
    group, switch, switches = _plugs(fabric, node, nic)
    left = network.node.nics.bytes_per_s * (1 - fabric.background)
    return Wiring(group=group, switch=switch, switches=switches, nic_bytes_per_s=left)


def _plugs(fabric: Interconnect, node: Indices, nic: Indices) -> tuple[Indices, Indices, int]:
    if isinstance(fabric, Dragonfly):
        group = np.minimum(node // fabric.nodes_per_group, fabric.groups - 1)
        block = (node - group * fabric.nodes_per_group) // fabric.endpoints_per_switch
        in_group = (block[:, None] * len(nic) + nic) % fabric.switches_per_group
        switch = group[:, None] * fabric.switches_per_group + in_group
        return group, switch, fabric.groups * fabric.switches_per_group
    if isinstance(fabric, FatTree):
        group = node // fabric.nodes_per_unit
        return group, group[:, None] * fabric.rails + nic % fabric.rails, fabric.leaves
    return node * 0, np.zeros((len(node), len(nic)), dtype=np.int64), 1
