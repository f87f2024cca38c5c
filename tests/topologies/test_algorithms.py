"""Every algorithm's phases by hand: two nodes of four ranks, 8 MB, round rates."""

from __future__ import annotations

import dataclasses
import math

import pytest

from topologies.collectives import algorithms
from topologies.collectives.algorithms import DeviceGroup, Phase
from topologies.hardware.software import Curve, Stall
from topologies.routing.rings import Ring

S = 8e6
TWO_NODES = DeviceGroup(Ring(8, 2, 4, 100e9), 200e9)
ONE_NODE = DeviceGroup(Ring(4, 1, 4, 200e9), 200e9)
ONE_EACH = DeviceGroup(Ring(2, 2, 1, 25e9), math.inf)
# Half the nominal rate across and all of it within; 10 us to launch, 5 us a hop, 1 us a step.
CURVE = Curve(
    launch_s=10e-6,
    efficiency_across=0.5,
    efficiency_within=1.0,
    hop_small_s=5e-6,
    step_small_s=1e-6,
)


def test_a_ring_moves_seven_eighths_and_re_enters_the_node_that_it_starts_amid() -> None:
    # Inside, as in one node of four: 6 MB take 30 us there.
    assert algorithms.ring(S, TWO_NODES) == [Phase(7e6, 100e9, True, 2, 5, 1e6, 30e-6)]
    # 7 MB at 50 GB/s are 140 us; 2 hops and 5 steps 15 us; 10 us to launch.
    assert algorithms.seconds(CURVE, algorithms.ring(S, TWO_NODES)) == pytest.approx(165e-6)


def test_a_ring_with_one_rank_per_node_hops_once_less_than_it_has_nodes() -> None:
    assert algorithms.ring(S, ONE_EACH) == [Phase(4e6, 25e9, True, 1, 0, 4e6)]


def test_a_ring_in_a_node_never_hops() -> None:
    assert algorithms.ring(S, ONE_NODE, passes=2) == [Phase(12e6, 200e9, False, 0, 6, 2e6)]


def test_a_tree_over_two_nodes_moves_the_buffer_once_each_way_in_halves() -> None:
    # Inside, a device amid the chain sends 8 MB up and 8 MB down: 80 us at 200 GB/s.
    assert algorithms.tree(S, TWO_NODES) == [Phase(8e6, 100e9, True, 2, 6, 1e6, 80e-6)]
    (slower,) = algorithms.tree(S, TWO_NODES, links_share=0.5)
    assert slower.least_s == pytest.approx(160e-6)
    assert algorithms.tree(S, ONE_EACH)[0].least_s == 0


@pytest.mark.parametrize(("nodes", "moved"), [(2, 1.0), (3, 1.5), (4, 2.0), (64, 2.0)])
def test_the_busiest_node_of_two_trees_has_three_neighbours_in_one_and_one_in_the_other(
    nodes: int, moved: float
) -> None:
    group = DeviceGroup(Ring(4 * nodes, nodes, 4, 100e9), 200e9)
    (both,) = algorithms.tree(S, group)
    (down,) = algorithms.tree(S, group, passes=1)
    assert (both.moved_bytes, down.moved_bytes) == (moved * S, S)
    assert (both.least_s, down.least_s) == pytest.approx((80e-6, 40e-6))


def test_two_devices_of_a_node_send_the_buffer_up_or_down_and_not_both() -> None:
    (phase,) = algorithms.tree(S, DeviceGroup(Ring(4, 2, 2, 100e9), 200e9))
    assert phase.least_s == pytest.approx(40e-6)


def test_links_in_a_node_and_nics_work_at_once_and_the_slower_counts() -> None:
    # 8 MB take 160 us at half of 100 GB/s; the links inside 80 us, or 200 where they are slower.
    phase = Phase(8e6, 100e9, True, 0, 0, 1e6)
    times = [
        algorithms.phase_seconds(CURVE, dataclasses.replace(phase, least_s=least_s))
        for least_s in (80e-6, 200e-6)
    ]
    assert times == pytest.approx([160e-6, 200e-6])


def test_reduction_in_the_switches_of_two_nodes_is_one_pipeline_with_the_nics() -> None:
    inside, across = algorithms.nvls(S, TWO_NODES, links_share=0.5)
    assert (inside.moved_bytes, inside.steps) == (0, 1)
    assert (across.moved_bytes, across.hops, across.steps) == (8e6, 2, 0)
    assert across.least_s == pytest.approx(80e-6)  # 8 MB at half of 200 GB/s


def test_recursive_doubling_sends_all_that_four_ranks_hold_between_the_nodes() -> None:
    inner, outer = algorithms.recursive(S, TWO_NODES)
    assert inner == Phase(3e6, 200e9, False, 0, 2, 1e6)
    assert outer == Phase(16e6, 100e9, True, 1, 0, 1e6)


def test_hierarchical_moves_each_byte_once_between_the_nodes() -> None:
    outer, inner = algorithms.hierarchical(S, TWO_NODES)
    assert outer == Phase(4e6, 100e9, True, 1, 0, 1e6)
    assert inner == Phase(6e6, 200e9, False, 0, 3, 1e6)
    # 80 + 5 us across, 30 + 3 us within, 10 us to launch.
    assert algorithms.seconds(CURVE, [outer, inner]) == pytest.approx(128e-6)


def test_reduction_in_the_switch_sends_the_buffer_once_where_a_ring_sends_it_nearly_twice() -> None:
    (phase,) = algorithms.nvls(S, ONE_NODE)
    (ring,) = algorithms.ring(S, ONE_NODE, passes=2)
    assert (phase.moved_bytes, ring.moved_bytes) == (8e6, 12e6)


def test_a_pairwise_exchange_is_bound_by_the_nics_or_by_the_links_inside() -> None:
    # Four ranks send half of their 8 MB each to the other node: 16 MB through its NICs.
    # One node of four would exchange 6 MB in 30 us.
    assert algorithms.pairwise(S, TWO_NODES) == [Phase(16e6, 100e9, True, 4, 3, 1e6, 30e-6)]
    # 6 MB on links of 10 GB/s, of which the library reaches half, take longer than 16 MB outside.
    slow_inside = DeviceGroup(TWO_NODES.ring, 10e9)
    (phase,) = algorithms.pairwise(S, slow_inside, links_share=0.5)
    assert phase.least_s == pytest.approx(1200e-6)
    latency_s = 10e-6 + 4 * 5e-6 + 3 * 1e-6
    assert algorithms.seconds(CURVE, [phase]) == pytest.approx(1200e-6 + latency_s)


def test_a_message_takes_one_hop_or_one_step() -> None:
    assert algorithms.direct(S, ONE_EACH) == [Phase(8e6, 25e9, True, 1, 0, 8e6)]
    assert algorithms.direct(S, ONE_NODE) == [Phase(8e6, 200e9, False, 0, 1, 8e6)]


def test_a_broadcast_along_the_ring_moves_the_buffer_past_everyone() -> None:
    assert algorithms.chain(S, TWO_NODES) == [Phase(8e6, 100e9, True, 1, 6, 4 << 20, 40e-6)]
    (short,) = algorithms.chain(1e6, TWO_NODES)
    assert short.chunk_bytes == 1e6


@pytest.mark.parametrize(("overlap", "expected_us"), [(1.0, 7.0), (2.0, 5.0)])
def test_latency_hides_behind_transfer_by_the_overlap(overlap: float, expected_us: float) -> None:
    curve = Curve(0.0, 1.0, 1.0, hop_small_s=3e-6, overlap=overlap)
    phase = Phase(4e5, 100e9, True, 1, 0, 1e5)  # 4 us of transfer, 3 us of latency
    assert algorithms.phase_seconds(curve, phase) == pytest.approx(expected_us * 1e-6)


def test_a_hop_at_the_pivot_is_the_geometric_mean_of_its_ends() -> None:
    curve = Curve(0.0, 1.0, 1.0, hop_small_s=1e-6, hop_large_s=100e-6, chunk_pivot_bytes=1000.0)
    assert algorithms.between(curve, 1e-6, 100e-6, 1000.0) == pytest.approx(10e-6)
    assert algorithms.between(curve, 1e-6, 100e-6, 1e9) == pytest.approx(100e-6, rel=1e-4)


def test_a_stall_costs_its_hop_inside_its_window_alone() -> None:
    curve = Curve(0.0, 1.0, 1.0, stall=Stall(100.0, 200.0, 1e-3))
    times = [
        algorithms.phase_seconds(curve, Phase(0.0, 1e9, True, 2, 0, chunk))
        for chunk in (99.0, 100.0, 199.0, 200.0)
    ]
    assert times == pytest.approx([0.0, 2e-3, 2e-3, 0.0])
