"""How far an axis reaches: whether its groups stay inside a node, a switch, a dragonfly group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.arrays import Indices
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.routing.wiring import wiring


@dataclass(frozen=True)
class Locality:
    """The reach of an axis: what holds for all of its groups, and the most that any one spans.

    A "switch" is the one that a rank's own NIC hangs on; `groups` are those of the dragonfly, or
    the units of a fat tree, as `group` says.
    """

    inside_node: bool
    inside_switch: bool
    inside_group: bool
    most_nodes: int
    most_switches: int
    most_groups: int
    group: str = "group"

    @property
    def words(self) -> str:
        """For people: `inside a node`, `over 32 nodes of 4 groups`."""
        if self.inside_node:
            return "inside a node"
        nodes = f"{self.most_nodes} node{'s' * (self.most_nodes > 1)}"
        if self.inside_switch:
            return f"{nodes} on a switch"
        return (
            f"{nodes} in a {self.group}"
            if self.inside_group
            else f"{nodes} of {self.most_groups} {self.group}s"
        )


def locality(machine: Machine, placement: Placement, members: Indices) -> Locality:
    """The reach of an axis's groups, given as (groups, p) ranks."""
    wires = wiring(machine.network)
    node = placement.node[members]
    nodes = _most_different(node)
    groups = _most_different(wires.group[node])
    switches = 1
    if nodes > 1:
        nic = np.array(machine.node.nics.of_device)[placement.device[members]]
        switches = _most_different(wires.switch[node, nic])
    group = "unit" if machine.interconnect.kind == "fat-tree" else "group"
    return Locality(nodes == 1, switches == 1, groups == 1, nodes, switches, groups, group)


def _most_different(values: Indices) -> int:
    """The most different values that any row has."""
    ordered = np.sort(values, axis=1)
    return int((np.diff(ordered, axis=1) != 0).sum(axis=1).max(initial=0)) + 1
