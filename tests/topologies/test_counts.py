"""How many nodes and cables the machine files have: one figure each, with a source, and all fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.examples import one_in
from topologies.hardware.interconnect import Dragonfly, FatTree
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import scattered, scheduler
from topologies.routing.wiring import wiring
from topologies.shipped import machine_names

MACHINES = [load_machine(name) for name in machine_names()]
DRAGONFLIES = [each for each in MACHINES if isinstance(each.interconnect, Dragonfly)]
TREES = [each for each in MACHINES if isinstance(each.interconnect, FatTree)]
ROSETTA_PORTS = 64  # of a Slingshot switch; De Sensi et al. (SC20, arXiv 2008.08886)
CABLED = ("interconnect.groups", "interconnect.units", "interconnect.rails", "interconnect.spines")
CABLED_BY = ("nodes_per_", "switches_per_", "endpoints_per_", "uplinks_per_", "_links")


def in_groups(machine: Machine) -> list[int]:
    """How many nodes each group or unit has."""
    return [int(count) for count in np.bincount(wiring(machine.network).group)]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_every_count_of_nodes_and_cables_has_a_source(machine: Machine) -> None:
    fabric = [fact for fact in machine.facts() if fact.key.startswith("interconnect.")]
    cabled = {f.key: f for f in fabric if f.key in CABLED or any(w in f.key for w in CABLED_BY)}
    counts = cabled | {fact.key: fact for fact in machine.facts() if fact.key == "nodes"}
    assert len(counts) == 1 + {"dragonfly": 6, "fat-tree": 5, "none": 0}[machine.interconnect.kind]
    assert [key for key, fact in counts.items() if not fact.source or not fact.confidence] == []
    assert [key for key, fact in counts.items() if "memory" in fact.source] == []


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_the_nodes_of_the_title_are_those_of_the_file(machine: Machine) -> None:
    named = re.search(r"([\d,]+) nodes", machine.description)
    assert named is None or int(named[1].replace(",", "")) == machine.nodes


@pytest.mark.parametrize("machine", DRAGONFLIES + TREES, ids=lambda each: each.name)
def test_groups_hold_all_nodes_and_none_is_empty(machine: Machine) -> None:
    fabric, nodes = machine.interconnect, in_groups(machine)
    assert isinstance(fabric, Dragonfly | FatTree)
    groups, each = (
        (fabric.groups, fabric.nodes_per_group)
        if isinstance(fabric, Dragonfly)
        else (fabric.units, fabric.nodes_per_unit)
    )
    assert (len(nodes), sum(nodes)) == (groups, machine.nodes)
    assert nodes[:-1] == [each] * (groups - 1)
    assert 0 < nodes[-1] <= fabric.nodes - each * (groups - 1)


@pytest.mark.parametrize("machine", DRAGONFLIES, ids=lambda each: each.name)
def test_no_switch_has_more_cables_than_ports(machine: Machine) -> None:
    fabric = machine.interconnect
    assert isinstance(fabric, Dragonfly)
    local = fabric.local_links * (fabric.switches_per_group - 1)
    across = fabric.global_links * (fabric.groups - 1) / fabric.switches_per_group
    assert fabric.endpoints_per_switch + local + across <= ROSETTA_PORTS
    endpoints = fabric.switches_per_group * fabric.endpoints_per_switch
    assert max(in_groups(machine)) * machine.node.nics.count <= endpoints


@pytest.mark.parametrize(("nodes", "last"), [("9408", 64), ("9856", 128)])
def test_frontier_at_its_launch_and_now(nodes: str, last: int) -> None:
    groups = str(74 if nodes == "9408" else 77)
    machine = with_settings("frontier", {"nodes": nodes, "interconnect.groups": groups})
    assert in_groups(machine)[-1] == last


@pytest.mark.parametrize("seed", one_in(4, range(8)))
@pytest.mark.parametrize("nodes", [1, 64, 4096, 7500, 9343, 9344, 9345, 9408])
def test_a_machine_with_a_part_empty_group_places_every_job(nodes: int, seed: int) -> None:
    machine = with_settings("frontier", {"nodes": "9408", "interconnect.groups": "74"})
    placed = np.unique(scheduler(machine, 8 * nodes, seed).node)
    assert (len(placed), placed.max() < 9408) == (nodes, True)


def test_a_part_empty_group_is_drawn_as_others_where_it_holds_its_share() -> None:
    machine = with_settings("frontier", {"nodes": "9408", "interconnect.groups": "74"})
    group = wiring(machine.network).group
    drawn = [set(group[scattered(machine, 512, 30, seed).node]) for seed in range(8)]
    assert any(73 in each for each in drawn)
    assert not all(73 in each for each in drawn)


def test_the_pod_of_dgx_a100_is_the_reference_architecture_and_not_selene() -> None:
    machine = load_machine("dgx-a100")
    tree = machine.interconnect
    assert isinstance(tree, FatTree)
    assert (machine.nodes, tree.units, tree.nodes_per_unit) == (140, 7, 20)
    assert (machine.node.nics.count, tree.rails, tree.link_bytes_per_s) == (8, 8, 25e9)
    sources = {fact.key: fact.source for fact in machine.facts()}
    assert "RA-09950-001" in sources["nodes"]
    assert "RA-09950-001" in sources["interconnect.rails"]
    assert not [key for key, source in sources.items() if "selene" in source.lower()]
