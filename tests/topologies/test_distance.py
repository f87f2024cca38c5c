"""What the switches on the way cost: by hand on Frontier, Perlmutter and a fat tree."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.collectives import algorithms
from topologies.collectives.algorithms import DeviceGroup, Phase
from topologies.collectives.benchmark import bench, ring_over
from topologies.hardware.software import Curve
from topologies.machine_files import load_machine, with_settings
from topologies.placement import contiguous, on_nodes, scattered
from topologies.routing.hop_latency import switches_between
from topologies.routing.rings import Ring, rings_together

FRONTIER = load_machine("frontier")
H100 = load_machine("dgx-h100")
SWITCH_S = 350e-9


def between(name: str, node: int, to: int) -> float:
    return float(switches_between(load_machine(name).network, np.array([node]), np.array([to]))[0])


def further(nodes: list[int], name: str = "frontier") -> float:
    machine = load_machine(name)
    ranks = len(nodes) * machine.devices_per_node
    return ring_over(machine, on_nodes(machine, np.array(nodes), ranks)).further_s


@pytest.mark.parametrize(
    ("name", "node", "to", "switches"),
    [
        ("frontier", 0, 15, 1.0),  # the 16 nodes of a chassis share their switches
        ("frontier", 0, 16, 2.0),
        ("frontier", 0, 128, 3.75),  # 4 of 32 switches have a link to that group: 2 + 2 * 28/32
        ("perlmutter", 0, 64, 3.5),  # 4 of 16
        ("dgx-h100", 0, 31, 1.0),  # the nodes of a unit share a leaf per rail
        ("dgx-h100", 0, 32, 3.0),  # leaf, spine, leaf
    ],
)
def test_a_minimal_route_passes_one_switch_to_four(
    name: str, node: int, to: int, switches: float
) -> None:
    assert between(name, node, to) == switches


def test_nodes_on_one_switch_add_nothing_to_what_was_measured() -> None:
    assert further([0, 1, 2, 3]) == 0.0


def test_a_ring_pays_the_mean_of_its_hops_switches_beyond_the_first() -> None:
    # Nodes 0 and 16 of one group: each of the two hops passes one switch more.
    assert further([0, 16]) == pytest.approx(SWITCH_S)
    # 0 to 1 on a switch, 1 to 128 and back to 0 over 3.75 switches.
    assert further([0, 1, 128]) == pytest.approx(2 * 2.75 / 3 * SWITCH_S)


def test_a_group_in_one_node_pays_for_no_distance() -> None:
    assert further([5]) == 0.0


def test_the_farthest_group_counts_for_all_of_its_axis() -> None:
    # Nodes 0 and 1 share a switch, 2 and 128 do not share a group.
    placement = on_nodes(FRONTIER, np.array([0, 1, 2, 128]), 32)
    members = np.array([[0, 8], [16, 24]])
    ((index, found),) = rings_together(FRONTIER, placement, [members])
    assert [found[i].further_s for i in index] == pytest.approx([2.75 * SWITCH_S] * 2)


def test_each_hop_takes_the_further_time_once() -> None:
    curve = Curve(0.0, 1.0, 1.0, hop_small_s=5e-6)
    phase = Phase(0.0, 1e9, True, 7, 3, 1e3)
    far = Ring(64, 8, 8, 1e9, further_s=1e-6)
    assert algorithms.phase_seconds(curve, phase, far) == pytest.approx(7 * 6e-6)


def test_a_tree_adds_its_levels_twice_and_a_ring_its_nodes() -> None:
    far = DeviceGroup(Ring(64, 8, 8, 100e9, 200e9, 1e-6), 200e9)
    curve = Curve(0.0, 1.0, 1.0)
    assert algorithms.seconds(curve, algorithms.tree(0.0, far), far.ring) == pytest.approx(6e-6)
    assert algorithms.seconds(curve, algorithms.ring(0.0, far), far.ring) == pytest.approx(8e-6)


def test_a_scattered_placement_costs_a_small_gather_more_than_a_contiguous_one() -> None:
    near, far = (
        bench(FRONTIER, "all_gather", [2.0**20], [512], placement=where)[0].seconds
        for where in ("contiguous", "scattered:64")
    )
    # 64 hops of 44.7 us at a chunk of 2 KiB, of which nearly all pass 2.75 switches more.
    assert 64 * 2.5 * SWITCH_S < far - near < 64 * 2.75 * SWITCH_S
    assert 1.005 < far / near < 1.03


def test_slower_switches_never_make_a_collective_faster() -> None:
    slow = with_settings(FRONTIER, {"interconnect.switch_latency": "10 us"})
    placement = scattered(FRONTIER, 512, 30)
    fast_ring, slow_ring = (ring_over(machine, placement) for machine in (FRONTIER, slow))
    assert slow_ring.further_s == pytest.approx(fast_ring.further_s * 10e-6 / SWITCH_S)


def test_units_of_a_fat_tree_are_farther_apart_than_their_nodes() -> None:
    inside, across = (
        ring_over(H100, on_nodes(H100, np.array(nodes), 16)).further_s
        for nodes in ([0, 1], [0, 32])
    )
    assert inside == 0.0
    assert across == pytest.approx(2 * 130e-9)
    assert ring_over(H100, contiguous(H100, 256)).further_s == 0.0
