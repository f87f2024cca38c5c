"""The machine as networkx graphs: one node in full, and the switches between the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import MachineError
from topologies.interconnect import Dragonfly
from topologies.machine import Machine

if TYPE_CHECKING:
    import networkx as nx


def node_graph(machine: Machine) -> nx.Graph:
    """One node: vertices ("device", d), ("nic", k) and ("host", 0).

    Edges carry `kind` ("link", "nic", "host"), `links` and `bytes_per_s`, the sum of the links
    in each direction; a device's NIC edge says which NIC it hangs on.
    """
    import networkx as nx

    node = machine.node
    graph = nx.Graph(name=machine.name)
    graph.add_node(("host", 0), kind="host")
    for device in range(node.devices):
        graph.add_node(("device", device), kind="device")
        rate = node.host.bytes_per_s
        graph.add_edge(("device", device), ("host", 0), kind="host", links=1, bytes_per_s=rate)
    for (a, b), links in node.link_counts().items():
        rate = links * node.links.bytes_per_s
        graph.add_edge(("device", a), ("device", b), kind="link", links=links, bytes_per_s=rate)
    for nic in range(node.nics.count):
        graph.add_node(("nic", nic), kind="nic")
    for device, nic in enumerate(node.nics.of_device):
        rate = node.nics.bytes_per_s
        graph.add_edge(("device", device), ("nic", nic), kind="nic", links=1, bytes_per_s=rate)
    return graph


def interconnect_graph(machine: Machine) -> nx.Graph:
    """The switches: vertices (group, switch) with `endpoints`, edges "local" or "global".

    Edges carry `links` and `bytes_per_s` per direction. Which switch holds a global link is
    assumed: a group's bundles go round its switches in turn, so each holds as many.
    """
    import networkx as nx

    fabric = machine.interconnect
    if not isinstance(fabric, Dragonfly):
        raise MachineError(f"{machine.name} is a single node without an interconnect")
    graph = nx.Graph(name=machine.name)
    for group in range(fabric.groups):
        for switch in range(fabric.switches_per_group):
            graph.add_node((group, switch), endpoints=fabric.endpoints_per_switch)
            for other in range(switch):
                _join(graph, fabric, (group, switch), (group, other), fabric.local_links)
    for a in range(fabric.groups):
        for b in range(a):
            for link in range(fabric.global_links):
                _join(graph, fabric, _end(fabric, a, b, link), _end(fabric, b, a, link), 1)
    return graph


def _end(fabric: Dragonfly, group: int, other: int, link: int) -> tuple[int, int]:
    """The switch of `group` that holds the given link of its bundle to another group."""
    bundle = (other - group - 1) % fabric.groups
    return group, (bundle * fabric.global_links + link) % fabric.switches_per_group


def _join(
    graph: nx.Graph, fabric: Dragonfly, a: tuple[int, int], b: tuple[int, int], links: int
) -> None:
    kind = "local" if a[0] == b[0] else "global"
    links += graph.edges[a, b]["links"] if graph.has_edge(a, b) else 0
    graph.add_edge(a, b, kind=kind, links=links, bytes_per_s=links * fabric.link_bytes_per_s)
