"""Rings get what the links, NICs and bundles leave them; all numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.messages import names
from topologies.errors import TooFewDevicesError
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous
from topologies.routing.ring_packing import packed_rings
from topologies.routing.rings import Ring, rings

GB = 1e9
FRONTIER = load_machine("frontier")
PERLMUTTER = load_machine("perlmutter")
MINIMAL = with_settings(FRONTIER, {"interconnect.routing": "minimal"})


def axis(ranks: int, inner: int, size: int) -> NDArray[np.int64]:
    """All groups of an axis of `size` ranks that stand `inner` ranks apart."""
    grid = np.arange(ranks).reshape(ranks // (inner * size), size, inner)
    return grid.transpose(0, 2, 1).reshape(-1, size)


def only_ring(machine: Machine, ranks: int, inner: int, size: int) -> Ring:
    index, found = rings(machine, contiguous(machine, ranks), axis(ranks, inner, size))
    assert len(index) == ranks // size
    assert len(found) == 1
    return found[0]


def rates(machine: Machine, groups: list[list[int]]) -> list[float]:
    members = np.array(groups)
    index, found = rings(machine, contiguous(machine, int(members.max()) + 1), members)
    return [found[i].bytes_per_s / GB for i in index]


@pytest.mark.parametrize(
    ("machine", "groups", "expected"),
    [
        (FRONTIER, [list(range(8))], [200]),
        (FRONTIER, [[0, 1]], [200]),
        (FRONTIER, [[0, 6]], [100]),
        (FRONTIER, [[0, 2, 4, 6], [1, 3, 5, 7]], [100, 100]),
        (FRONTIER, [[0, 1, 2, 3], [4, 5, 6, 7]], [100, 100]),
        (FRONTIER, [[0, 4], [1, 5], [2, 6], [3, 7]], [50, 50, 50, 50]),
        (PERLMUTTER, [[0, 1, 2, 3]], [300]),
        (PERLMUTTER, [[0, 2], [1, 3]], [100, 100]),
        (load_machine("alps"), [[0, 1, 2, 3]], [450]),
    ],
)
def test_rings_inside_a_node_take_its_unit_links(
    machine: Machine, groups: list[list[int]], expected: list[float]
) -> None:
    assert rates(machine, groups) == expected


def test_links_that_a_file_names_from_the_higher_device_are_the_same_links() -> None:
    turned = [[b, a, count] for a, b, count in FRONTIER.node.links.pairs]
    machine = with_settings(FRONTIER, {"node.links.pairs": turned})
    assert machine.node.link_counts() == FRONTIER.node.link_counts()
    assert rates(machine, [[0, 2, 4, 6], [1, 3, 5, 7]]) == [100, 100]


def test_groups_that_find_no_ring_share_one() -> None:
    bus = with_settings(PERLMUTTER, {"node.links.all_pairs": "0", "node.links.pairs": "[[0,1,1],"
                                     "[1,2,1],[2,3,1]]"})  # fmt: skip
    assert packed_rings(bus.node, ((0, 2), (1, 3))) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("inner", "size", "ring"),
    [
        (1, 16, Ring(16, 2, 8, 100 * GB, 200 * GB)),  # one group in a node: all four NICs
        (2, 8, Ring(8, 2, 4, 50 * GB, 100 * GB)),  # two groups, each on all four NICs: half of each
        (
            4,
            4,
            Ring(4, 2, 2, 25 * GB, 50 * GB),
        ),  # four groups: two NICs each, every NIC shared by two
        (8, 2, Ring(2, 2, 1, 12.5 * GB)),  # eight groups, one GCD each: half a NIC
    ],
)
def test_groups_share_the_nics_of_a_frontier_node(inner: int, size: int, ring: Ring) -> None:
    assert only_ring(FRONTIER, 16, inner, size) == ring


def test_four_groups_on_perlmutter_have_a_nic_each() -> None:
    assert only_ring(PERLMUTTER, 8, 4, 2) == Ring(2, 2, 1, 25 * GB)


def test_a_ring_alone_on_one_gcd_has_a_whole_nic() -> None:
    assert rates(FRONTIER, [[0, 8, 16]]) == [25]


def test_slow_links_in_the_node_hold_back_a_ring_across_nodes() -> None:
    slow = with_settings(FRONTIER, {"node.links.bandwidth": "5 GB/s"})
    assert only_ring(slow, 16, 1, 16).bytes_per_s == 20 * GB


def test_a_group_of_one_rank_needs_no_ring() -> None:
    assert only_ring(FRONTIER, 16, 1, 1) == Ring(1, 1, 1, math.inf)


def test_minimal_routes_squeeze_through_the_bundle_between_two_groups() -> None:
    # 1,024 rings of half a NIC each cross one bundle of 4 x 25 GB/s in either direction.
    assert only_ring(MINIMAL, 2048, 1024, 2).bytes_per_s == pytest.approx(100 * GB / 1024, rel=1e-4)


def test_two_groups_alone_detour_over_all_others() -> None:
    # One bundle of 100 GB/s straight and 75 detours of as much, for 1,024 rings.
    expected = 76 * 100 * GB / 1024
    assert only_ring(FRONTIER, 2048, 1024, 2).bytes_per_s == pytest.approx(expected, rel=1e-3)


def test_a_ring_that_stays_in_its_group_does_not_feel_the_bundles() -> None:
    assert only_ring(MINIMAL, 1024, 1, 1024).bytes_per_s == 100 * GB


def test_a_few_rings_between_groups_leave_the_bundle_idle() -> None:
    # Of 128 nodes in a group only the last and first carry the one ring's 100 GB/s.
    assert only_ring(MINIMAL, 2048, 1, 2048).bytes_per_s == 100 * GB


def test_unequal_groups_get_unequal_rings() -> None:
    # The group on GCDs 0 and 1 has NIC 0 alone but for the other's share: 12.5 each way.
    index, found = rings(FRONTIER, contiguous(FRONTIER, 24), np.array([[0, 8], [1, 9], [2, 10]]))
    assert [found[i].bytes_per_s / GB for i in index] == [12.5, 12.5, 25]


def test_scattered_nodes_are_visited_once_in_rank_order() -> None:
    placement = Placement(np.array([5, 0, 5, 0]), np.array([0, 0, 1, 1]))
    _, found = rings(FRONTIER, placement, np.array([[0, 1, 2, 3]]))
    assert found == [Ring(4, 2, 2, 25 * GB, 200 * GB)]


def test_more_ranks_than_devices_are_refused_with_status_3() -> None:
    with pytest.raises(TooFewDevicesError, check=names("78849", "frontier")) as error:
        contiguous(FRONTIER, 78849)
    assert error.value.exit_code == 3


def test_the_links_between_the_two_devices_of_a_pair_are_told_apart() -> None:
    """A package, devices two apart, four apart (none joins 0 and 4), and pairs over two nodes."""
    pairs = np.array([[0, 1], [0, 2], [0, 4], [0, 8]])
    index, found = rings(FRONTIER, contiguous(FRONTIER, 16), pairs)
    assert [found[i].pair_links for i in index] == [4, 1, 0, -1]
    assert only_ring(FRONTIER, 8, 1, 8).pair_links == -1
