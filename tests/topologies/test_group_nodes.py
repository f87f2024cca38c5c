"""Which devices a group has in each node that it visits, in nodes of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from topologies.collectives.benchmark import ring_over
from topologies.machine_files import load_machine
from topologies.placement import contiguous
from topologies.routing.group_nodes import together, visits_of
from topologies.routing.rings import rings_together

RACKS = load_machine("gb200-nvl72")


def sets_of(members: list[list[int]], ranks: int = 144) -> list[tuple[int, int, tuple[int, ...]]]:
    """Group, node and devices of each visit."""
    visits = visits_of(contiguous(RACKS, ranks), np.array(members))
    return [
        (group, node, visits.devices_in(which))
        for group, node, which in zip(
            visits.group.tolist(), visits.node.tolist(), visits.devices.tolist(), strict=True
        )
    ]


def test_devices_of_a_rack_are_told_apart_beyond_the_sixty_third() -> None:
    assert sets_of([[0, 62, 63, 71], [1, 64, 72, 143]]) == [
        (0, 0, (0, 62, 63, 71)),
        (1, 0, (1, 64)),
        (1, 1, (0, 71)),
    ]


@few_and_many(10, 100, settings(), order=st.permutations(range(144)))
def test_visits_have_every_member_once(order: list[int]) -> None:
    found = sets_of([order[:48], order[48:96], order[96:]])
    for group in range(3):
        ranks = [72 * node + d for g, node, devices in found if g == group for d in devices]
        assert sorted(ranks) == sorted(order[48 * group : 48 * group + 48])


def test_sets_of_several_axes_are_numbered_through() -> None:
    placement = contiguous(RACKS, 144)
    parts = [visits_of(placement, np.array([[0, 70]])), visits_of(placement, np.array([[2, 80]]))]
    both = together(parts)
    assert [both.devices_in(which) for which in both.devices.tolist()] == [(0, 70), (2,), (8,)]


def test_a_ring_across_racks_has_a_nic_for_each_device() -> None:
    one = ring_over(RACKS, contiguous(RACKS, 144)).bytes_per_s
    ((_, (pair,)),) = rings_together(RACKS, contiguous(RACKS, 144), [np.array([[71, 143]])])
    assert pair.bytes_per_s == pytest.approx(50e9)
    # 72 channels of 50 GB/s, but no more than NVLink's 900 GB/s of one device.
    assert one == pytest.approx(900e9)
