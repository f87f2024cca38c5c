"""Bytes over links, worked out by hand on machines that we ship."""

from __future__ import annotations

import numpy as np
import pytest

from tests.messages import assert_names
from topologies.collectives.link_loads import (
    SWITCH,
    LinkLoads,
    RingTraffic,
    link_loads,
    ring_shares,
)
from topologies.machine_files import load_machine
from topologies.placement import contiguous

FRONTIER = load_machine("frontier")


def loads(
    groups: list[list[int]], ranks: int, hop_bytes: float = 8.0, *, pairs: bool = False
) -> LinkLoads:
    traffic = RingTraffic("x", np.array(groups, dtype=np.int64), hop_bytes, pairs)
    return link_loads(FRONTIER, contiguous(FRONTIER, ranks), [traffic])


def test_two_devices_send_to_each_other_over_the_link_between_them() -> None:
    found = loads([[0, 1]], 8)
    assert found.links == {(0, 1): 8.0}
    assert found.nics == (0.0,) * 4
    (busiest,) = (each for each in found.sorts if each.words == "4 links inside the node")
    assert busiest.most_bytes == 8.0
    assert busiest.mean_bytes == 2.0  # of four such pairs in a node
    assert busiest.busy(1.0) == pytest.approx(8.0 / 200e9)


def test_a_group_with_one_device_in_each_node_uses_the_nic_of_that_device() -> None:
    found = loads([[rank, rank + 8] for rank in (0, 1)], 16)
    assert found.links == {}
    assert found.nics == (16.0, 0.0, 0.0, 0.0)  # GCDs 0 and 1 hang on NIC 0


def test_a_group_of_whole_nodes_leaves_by_all_nics_alike() -> None:
    found = loads([list(range(16))], 16)
    assert found.nics == (2.0,) * 4
    # One of a node's 8 hops leaves it; links carry half of the others in each direction.
    assert sum(found.links.values()) == pytest.approx(7 * 8.0 / 2)


def test_ranks_of_two_dragonfly_groups_cross_the_links_between_them() -> None:
    per_group = FRONTIER.interconnect.nodes_per_group * 8  # type: ignore[union-attr]
    found = loads([[0, per_group]], 2 * per_group)
    assert_names(found.sorts[-1].words, "groups")
    assert found.sorts[-1].most_bytes == 8.0


def test_the_ring_of_two_devices_counts_its_link_once_a_direction() -> None:
    assert ring_shares(FRONTIER.node, (0, 1)) == {(0, 1): 1.0}
    assert ring_shares(load_machine("dgx-h100").node, (0, 3)) == {
        (0, SWITCH): 1.0,
        (3, SWITCH): 1.0,
    }


def test_pairs_leave_by_the_nics_of_their_devices_and_by_the_links_between_them() -> None:
    # A byte to each of 15 others: 8 of them in the other node, two GCDs on each NIC.
    found = loads([list(range(16))], 16, 15.0, pairs=True)
    assert found.nics == (16.0,) * 4
    # The fullest link is crossed by four pairs, as in the rates of all-to-alls.
    (single,) = (each for each in found.sorts if {"1", "node"} <= {*each.words.split()})
    assert single.most_bytes == 4.0


def test_pairs_of_two_dragonfly_groups_cross_their_links_as_often_as_there_are() -> None:
    per_group = FRONTIER.interconnect.nodes_per_group * 8  # type: ignore[union-attr]
    found = loads([[0, 8, 16, per_group]], 2 * per_group, 3.0, pairs=True)
    assert_names(found.sorts[-1].words, "groups")
    assert found.sorts[-1].most_bytes == 3.0  # a byte from each of three ranks


def test_pairs_on_a_switch_load_each_devices_links_to_it() -> None:
    machine = load_machine("dgx-h100")
    traffic = RingTraffic("x", np.arange(8).reshape(1, 8), 7.0, pairs=True)
    found = link_loads(machine, contiguous(machine, 8), [traffic])
    assert found.links == {(device, SWITCH): 7.0 for device in range(8)}


def test_uplinks_of_a_leaf_carry_what_the_nics_of_one_rail_send() -> None:
    """Eight groups of one device in each of two units: a leaf joins the first NICs of all nodes."""
    machine = load_machine("dgx-h100")
    unit = machine.interconnect.nodes_per_unit * 8  # type: ignore[union-attr]
    groups = np.array([[device, unit + device] for device in range(8)])
    found = link_loads(machine, contiguous(machine, 2 * unit), [RingTraffic("x", groups, 5.0)])
    assert_names(found.sorts[-1].words, "uplinks")
    assert found.sorts[-1].most_bytes == 5.0
