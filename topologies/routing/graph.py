"""The machine as networkx graphs: one node in full, the switches between the nodes, and all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import MachineError
from topologies.hardware.interconnect import Dragonfly, FatTree, Interconnect, NoInterconnect
from topologies.machine import Machine
from topologies.routing.wiring import wiring

if TYPE_CHECKING:
    import networkx as nx


def node_graph(machine: Machine) -> nx.Graph:
    """One node: vertices ("device", d), ("nic", k), ("host", 0), and ("switch", 0) if it has one.

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
        rate = links * node.link_bytes_per_s
        graph.add_edge(("device", a), ("device", b), kind="link", links=links, bytes_per_s=rate)
    if node.links.switch:
        graph.add_node(("switch", 0), kind="switch")
        own = {"links": node.links.switch, "bytes_per_s": node.device_bytes_per_s}
        for device in range(node.devices):
            graph.add_edge(("device", device), ("switch", 0), kind="link", **own)
    for nic in range(node.nics.count):
        graph.add_node(("nic", nic), kind="nic")
    for device, nic in enumerate(node.nics.of_device):
        rate = node.nics.bytes_per_s
        graph.add_edge(("device", device), ("nic", nic), kind="nic", links=1, bytes_per_s=rate)
    return graph


def interconnect_graph(machine: Machine) -> nx.Graph:
    """The switches, with their `endpoints`: (group, switch) in a dragonfly, joined by "local" and
    "global" edges; ("leaf", unit, rail) and ("spine", s) in a fat tree, joined by "up" edges.

    Edges carry `links` and `bytes_per_s` per direction. Which switch holds a global link is
    assumed: a group's bundles go round its switches in turn, so each holds as many; and a leaf's
    uplinks go round the spines.
    """
    import networkx as nx

    fabric = machine.interconnect
    graph = nx.Graph(name=machine.name)
    if isinstance(fabric, Dragonfly):
        _add_dragonfly(graph, fabric)
    elif isinstance(fabric, FatTree):
        _add_fat_tree(graph, fabric, machine.node.nics.count)
    else:
        raise MachineError(f"{machine.name} is a single node without an interconnect")
    return graph


def machine_graph(machine: Machine) -> nx.Graph:
    """The whole machine: every node's ("device", n, d) and ("nic", n, k), and all switches.

    Switches are the vertices of `interconnect_graph`; a NIC's edge to its switch has the kind
    "endpoint". Hosts and switches inside nodes: ("host", n, 0), ("switch", n, 0).
    """
    import networkx as nx

    joined = not isinstance(machine.interconnect, NoInterconnect)
    graph = interconnect_graph(machine) if joined else nx.Graph(name=machine.name)
    inside = node_graph(machine)
    for n in range(machine.nodes):
        graph.add_nodes_from(((kind, n, i), about) for (kind, i), about in inside.nodes.items())
        graph.add_edges_from(
            ((a[0], n, a[1]), (b[0], n, b[1]), about) for a, b, about in inside.edges(data=True)
        )
    if joined:
        about = {"kind": "endpoint", "links": 1, "bytes_per_s": machine.node.nics.bytes_per_s}
        plugs = wiring(machine.network).switch.tolist()
        graph.add_edges_from(
            (("nic", n, k), _switch(machine.interconnect, number), about)
            for n, switches in enumerate(plugs)
            for k, number in enumerate(switches)
        )
    return graph


def _switch(fabric: Interconnect, number: int) -> tuple[int, int] | tuple[str, int, int]:
    """The vertex of a switch that the wiring knows by its number."""
    if isinstance(fabric, Dragonfly):
        return divmod(number, fabric.switches_per_group)
    assert isinstance(fabric, FatTree)
    return ("leaf", *divmod(number, fabric.rails))


def _add_dragonfly(graph: nx.Graph, fabric: Dragonfly) -> None:
    for group in range(fabric.groups):
        for switch in range(fabric.switches_per_group):
            graph.add_node((group, switch), kind="switch", endpoints=fabric.endpoints_per_switch)
            for other in range(switch):
                _join(graph, fabric, (group, switch), (group, other), fabric.local_links)
    for a in range(fabric.groups):
        for b in range(a):
            for link in range(fabric.global_links):
                _join(graph, fabric, _end(fabric, a, b, link), _end(fabric, b, a, link), 1)


def _add_fat_tree(graph: nx.Graph, fabric: FatTree, nics: int) -> None:
    endpoints = fabric.nodes_per_unit * nics // fabric.rails
    for number in range(fabric.leaves):
        leaf = ("leaf", *divmod(number, fabric.rails))
        graph.add_node(leaf, kind="switch", endpoints=endpoints)
        for uplink in range(fabric.uplinks_per_leaf):
            spine = ("spine", uplink % fabric.spines)
            graph.add_node(spine, kind="switch", endpoints=0)
            links = 1 + (graph.edges[leaf, spine]["links"] if graph.has_edge(leaf, spine) else 0)
            rate = links * fabric.link_bytes_per_s
            graph.add_edge(leaf, spine, kind="up", links=links, bytes_per_s=rate)


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
