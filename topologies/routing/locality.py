"""How far an axis reaches: whether its groups stay inside a node, a switch, a dragonfly group."""

from __future__ import annotations

import numpy as np

from topologies.arrays import Indices
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from topologies.routing.wiring import wiring


@record(slots=False)
class Locality:
    """The reach of an axis: what holds for all of its groups, and the most that any one spans.

    A "switch" is the one that a rank's own NIC hangs on; `groups` are those of the dragonfly, or
    the units of a fat tree, as `group` says. `whole` is how many of a node's devices make a whole
    number of groups, if only as many in use would keep every group inside a node; else 0.
    """

    inside_node: bool
    inside_switch: bool
    inside_group: bool
    most_nodes: int
    most_switches: int
    most_groups: int
    group: str = "group"
    whole: int = 0

    @property
    def words(self) -> str:
        """For people: `inside a node`, `over 32 nodes of 4 groups`."""
        if self.inside_node:
            return "inside a node"
        if self.whole:
            return f"{self._where} (one, with {self.whole} devices of each in use)"
        return self._where

    @property
    def _where(self) -> str:
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
    whole = _whole(int(np.bincount(placement.node).max()), members) if nodes > 1 else 0
    return Locality(nodes == 1, switches == 1, groups == 1, nodes, switches, groups, group, whole)


def _whole(devices: int, members: Indices) -> int:
    """How many of a node's devices are a whole number of blocks of neighbouring ranks, each of
    which holds its groups whole; 0 if no block fits a node, or all devices are such a number."""
    first, last = members.min(axis=1), members.max(axis=1)
    least = int((last - first).max()) + 1
    for block in range(least, devices + 1):
        if (first // block == last // block).all():
            return 0 if devices % block == 0 else devices // block * block
    return 0


def _most_different(values: Indices) -> int:
    """The most different values that any row has."""
    ordered = np.sort(values, axis=1)
    return int((np.diff(ordered, axis=1) != 0).sum(axis=1).max(initial=0)) + 1
