"""The graphs hold what the facilities' diagrams show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.messages import names
from topologies.errors import MachineError
from topologies.hardware.interconnect import Dragonfly
from topologies.machine import machine_from_dict, machine_to_dict
from topologies.machine_files import load_machine, with_settings
from topologies.routing.graph import interconnect_graph, machine_graph, node_graph


def dragonfly(name: str) -> Dragonfly:
    fabric = load_machine(name).interconnect
    assert isinstance(fabric, Dragonfly)
    return fabric


def test_a_frontier_node_has_twelve_linked_pairs_and_26_links() -> None:
    graph = node_graph(load_machine("frontier"))
    links = {(a[1], b[1]): d for a, b, d in graph.edges(data=True) if d["kind"] == "link"}
    assert len(links) == 12
    assert sum(d["links"] for d in links.values()) == 4 * 4 + 2 * 2 + 6 * 1
    assert links[0, 1]["bytes_per_s"] == 200e9
    assert links[0, 6]["bytes_per_s"] == 100e9
    assert links[1, 3]["bytes_per_s"] == 50e9


def test_two_gcds_of_frontier_share_a_nic_and_perlmutter_counts_backwards() -> None:
    frontier, perlmutter = (node_graph(load_machine(n)) for n in ("frontier", "perlmutter"))
    assert all(frontier.has_edge(("device", d), ("nic", d // 2)) for d in range(8))
    assert all(perlmutter.has_edge(("device", d), ("nic", 3 - d)) for d in range(4))


@pytest.mark.parametrize("name", ["perlmutter", "alps"])
def test_every_pair_of_a_four_gpu_node_is_linked(name: str) -> None:
    graph = node_graph(load_machine(name))
    links = [d["bytes_per_s"] for _, _, d in graph.edges(data=True) if d["kind"] == "link"]
    assert links == [{"perlmutter": 100e9, "alps": 150e9}[name]] * 6


def test_frontiers_groups_could_send_57_percent_of_what_they_inject_at_launch() -> None:
    assert dragonfly("frontier").taper == pytest.approx(76 * 4 / 512)
    launch = replace(dragonfly("frontier"), groups=74)  # OLCF gives its 57 % and 270 TB/s
    assert round(launch.taper, 2) == 0.57
    assert round(74 * 73 / 2 * launch.bundle_bytes_per_s, -12) == 270e12


@pytest.mark.parametrize("name", ["frontier", "perlmutter", "alps"])
def test_a_groups_endpoints_are_its_nodes_nics(name: str) -> None:
    fabric = dragonfly(name)
    nics = fabric.nodes_per_group * load_machine(name).node.nics.count
    assert fabric.switches_per_group * fabric.endpoints_per_switch == nics


def test_a_frontier_switch_has_at_most_64_ports() -> None:
    graph = interconnect_graph(load_machine("frontier"))
    assert len(graph) == 77 * 32
    kinds = {"local": 77 * 32 * 31 // 2, "global": 77 * 76 // 2 * 4}
    for kind, links in kinds.items():
        assert sum(d["links"] for *_, d in graph.edges(data=True) if d["kind"] == kind) == links
    ports = [graph.nodes[v]["endpoints"] + graph.degree(v, weight="links") for v in graph]
    assert max(ports) <= 16 + 31 + 16
    assert max(ports) - min(ports) <= 1


def test_a_single_node_has_no_interconnect_graph() -> None:
    document = machine_to_dict(with_settings("alps", {"nodes": "1"}))
    document["interconnect"] = {"kind": "none"}
    machine = machine_from_dict(document, "one node")
    assert machine.devices == 4
    with pytest.raises(MachineError, check=names("alps")):
        interconnect_graph(machine)


def test_the_graph_of_a_whole_machine_has_every_device_nic_and_switch() -> None:
    machine = with_settings("frontier", {"nodes": "256"})
    graph = machine_graph(machine)
    kinds = [about["kind"] for _, about in graph.nodes(data=True)]
    assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == {
        "switch": 77 * 32, "host": 256, "device": 2048, "nic": 1024,
    }  # fmt: skip
    # NIC 2 of node 20 (chassis 1 of group 0) is on switch 4 + 2; that of node 148 in group 1.
    assert graph.edges[("nic", 20, 2), (0, 6)]["kind"] == "endpoint"
    assert graph.edges[("nic", 148, 2), (1, 6)]["bytes_per_s"] == 25e9
    assert graph.edges[("device", 255, 0), ("device", 255, 1)]["links"] == 4
    for group in range(2):
        plugged = [v for v in graph[(group, 6)] if v[0] == "nic"]
        assert len(plugged) == 16


def test_every_dgx_nic_of_a_rail_is_on_its_units_leaf() -> None:
    graph = machine_graph(load_machine("dgx-h100"))
    assert graph.edges[("nic", 33, 5), ("leaf", 1, 5)]["kind"] == "endpoint"
    assert len([v for v in graph[("leaf", 1, 5)] if v[0] == "nic"]) == 32
    assert graph.edges[("leaf", 0, 0), ("spine", 3)] == {
        "kind": "up", "links": 2, "bytes_per_s": 100e9,
    }  # fmt: skip
    ports = [graph.degree(("spine", s), weight="links") for s in range(16)]
    assert ports == [64] * 16
    assert graph.edges[("device", 0, 0), ("switch", 0, 0)]["bytes_per_s"] == 450e9


def test_a_single_host_is_a_whole_machine() -> None:
    assert len(machine_graph(load_machine("host"))) == 3


def test_a_node_has_either_pairs_or_a_switch() -> None:
    with pytest.raises(MachineError, check=names("dgx-a100", "node.links", "pairs")):
        with_settings("dgx-a100", {"node.links.all_pairs": "1"})
