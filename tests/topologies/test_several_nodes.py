"""Several nodes contain one: the same bytes per device never take less time on more of them."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from topologies.collectives import algorithms
from topologies.collectives.algorithms import DeviceGroup
from topologies.collectives.benchmark import ring_over
from topologies.collectives.collective_time import (
    algorithm_seconds,
    between_pairs,
    with_algorithm,
)
from topologies.errors import MachineError
from topologies.hardware.software import ALGORITHMS, Curve, Software
from topologies.machine_files import load_machine
from topologies.placement import Placement
from topologies.routing.rings import Ring
from topologies.shipped import machine_names

PARTS = ("8xMI300X,8xNDR", "8xMI355X,8xNDR", "4xMI300A", "8xH100-pcie,8xNDR", "8xA800,8xHDR")
MACHINES = [*machine_names(), *(f"16x{parts}" for parts in PARTS)]
CHOICES = [
    (kind, name) for kind, names in ALGORITHMS.items() if kind != "send_recv" for name in names[2:]
]
cached_machine = cache(load_machine)


@cache
def ring_of(name: str, nodes: int, each: int, stride: int, pairs: bool) -> Ring:
    """The ring over `each` devices, that many apart, of each of so many nodes."""
    rank = np.arange(nodes * each)
    placed = Placement(node=rank // each, device=rank % each * stride)
    return ring_over(cached_machine(name), placed, "all_to_all" if pairs else "all_gather")


@few_and_many(
    12,
    50,
    settings(deadline=None),
    name=st.sampled_from(MACHINES),
    nodes=st.sampled_from([2, 3, 8]),
    each=st.sampled_from([2, 3, 4, 6, 8, 12]),
    stride=st.sampled_from([1, 2]),
    size=st.sampled_from([2.0**10, 2.0**18, 2.0**22, 2.0**30, 2.0**34]),
)
def test_the_same_bytes_on_more_nodes_take_no_less_time(
    name: str, nodes: int, each: int, stride: int, size: float
) -> None:
    machine = cached_machine(name)
    assume(each * stride <= machine.devices_per_node and nodes <= machine.nodes)
    for kind, algorithm in CHOICES:
        chosen, pairs = with_algorithm(machine, kind, algorithm), between_pairs(kind)
        one, several = (ring_of(name, n, each, stride, pairs) for n in (1, nodes))
        with suppress(MachineError):  # the library has no such algorithm
            least = algorithm_seconds(chosen, kind, size, one)[algorithm]
            found = algorithm_seconds(chosen, kind, size, several)[algorithm]
            assert found >= least * (1 - 1e-9), (kind, algorithm)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_ring_over_two_nodes_waits_for_the_links_inside_them(passes: int) -> None:
    # Of 8 MB a node of four devices passes 6 MB along links of 50 GB/s, of which rings reach half.
    group = DeviceGroup(Ring(8, 2, 4, 400e9), 50e9)
    (phase,) = algorithms.ring(8e6, group, passes, links_share=0.5)
    assert phase.least_s == pytest.approx(passes * 6e6 / 25e9)


def test_a_curve_of_small_messages_serves_the_first_bytes_of_a_large_one() -> None:
    rings = Curve(launch_s=0, efficiency_across=1, efficiency_within=0.8)
    tree = Curve(launch_s=0, efficiency_across=1, efficiency_within=0.1, within_to_bytes=1e6)
    library = Software("NCCL", all_gather=rings, tree=tree)
    assert library.in_node(tree, 1e6) == tree
    # 1 MB at a tenth and 8 MB at eight tenths of the rate: 9 MB in the time of 20.
    assert library.in_node(tree, 9e6).efficiency_within == pytest.approx(9 / 20)
