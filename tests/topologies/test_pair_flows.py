"""All-to-alls on the links of a machine, beside all their pairs' flows one by one."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.examples import few_and_many
from tests.topologies.test_together import MINIMAL, SWITCHED, TAPERED, Groups, axis, worlds
from topologies.collectives import algorithms
from topologies.collectives.collective_time import collective_seconds, group_of
from topologies.hardware.software import Curve
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous
from topologies.routing.group_nodes import visits_of
from topologies.routing.hop_latency import pairs_further_seconds, switches_between
from topologies.routing.point_to_point import flow_rates
from topologies.routing.rings import Ring, rings, rings_together

GB = 1e9
FRONTIER = load_machine("frontier")
RACKS = load_machine("gb200-nvl72")
FEW_UPLINKS = with_settings(SWITCHED, {"interconnect.uplinks_per_leaf": "1"})
EXACT = st.sampled_from([MINIMAL, SWITCHED, FEW_UPLINKS])
FREE = Curve(launch_s=0.0, efficiency_across=1.0, efficiency_within=1.0)
Placed = tuple[Placement, list[Groups]]


def exchange(machine: Machine, placement: Placement, groups: Groups) -> list[Ring]:
    index, found = rings(machine, placement, groups, pairs=True)
    return [found[i] for i in index]


def pair_rate(ring: Ring) -> float:
    """What the slowest pair of a group gets."""
    per_node = ring.ranks / ring.nodes
    if ring.nodes == 1:
        return ring.bytes_per_s / (ring.ranks - 1)
    inside = ring.within_bytes_per_s / (per_node - 1) if per_node > 1 else np.inf
    return min(inside, ring.bytes_per_s / (per_node * (ring.ranks - per_node)))


def every_pair(groups: Groups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    pairs = [pair for group in groups.tolist() for pair in permutations(group, 2)]
    source, target = np.array(pairs, dtype=np.int64).T
    return source, target


def last_end_s(machine: Machine, placement: Placement, groups: Groups, nbytes: float) -> float:
    """When the last of all pairs' flows ends, each with its max-min fair share of the moment."""
    source, target = every_pair(groups)
    left, now = np.full(len(source), nbytes), 0.0
    while len(left):
        rates = flow_rates(machine, placement, source, target)
        now += (step := float((left / rates).min()))
        left = left - rates * step
        kept = left > 1e-6 * nbytes
        left, source, target = left[kept], source[kept], target[kept]
    return now


def seconds(ring: Ring, nbytes: float) -> float:
    """The transfer of an all-to-all of a library that loses nothing."""
    return algorithms.seconds(FREE, algorithms.pairwise(nbytes, group_of(ring)), ring)


def test_eight_gcds_each_of_two_nodes_send_by_their_nodes_four_nics() -> None:
    # 64 pairs leave a node, 16 of them by each NIC of 25 GB/s.
    (ring,) = exchange(FRONTIER, contiguous(FRONTIER, 16), axis(16, 1, 16))
    assert (ring.nodes, ring.bytes_per_s, ring.fabric_share) == (2, 64 * 25 * GB / 16, 1.0)


def test_the_fullest_link_of_a_node_carries_four_of_its_gcds_pairs() -> None:
    # One link of 50 GB/s, for its own two GCDs and the ways over them.
    (ring,) = exchange(FRONTIER, contiguous(FRONTIER, 8), axis(8, 1, 8))
    assert ring.bytes_per_s == 7 * 50 * GB / 4
    pairs = exchange(FRONTIER, contiguous(FRONTIER, 8), axis(8, 1, 2))
    assert {ring.bytes_per_s for ring in pairs} == {200 * GB}


def test_a_rack_is_bound_by_its_switch_and_two_racks_by_their_nics() -> None:
    (rack,) = exchange(RACKS, contiguous(RACKS, 72), axis(72, 1, 72))
    (two,) = exchange(RACKS, contiguous(RACKS, 144), axis(144, 1, 144))
    assert rack.bytes_per_s == 900 * GB
    assert (two.nodes, two.bytes_per_s) == (2, 72 * 50 * GB)


def test_groups_at_one_place_of_every_node_share_a_nic() -> None:
    # Sixteen groups of two; two GCDs hang on each NIC.
    found = exchange(FRONTIER, contiguous(FRONTIER, 32), axis(32, 16, 2))
    assert {ring.bytes_per_s for ring in found} == {12.5 * GB}


def test_an_exchange_and_rings_on_a_switch_halve_each_devices_links() -> None:
    axes = [axis(8, 1, 8), axis(8, 1, 2)]
    found = rings_together(SWITCHED, contiguous(SWITCHED, 8), axes, [True, False])
    assert [{ring.bytes_per_s for ring in rings} for _, rings in found] == [{150 * GB}] * 2


def test_a_ragged_group_waits_for_its_busiest_nic() -> None:
    # Ranks 0 and 1 share a NIC and each send to the third rank: two pairs on 25 GB/s.
    (ring,) = exchange(FRONTIER, contiguous(FRONTIER, 16), np.array([[0, 1, 8]]))
    assert pair_rate(ring) == pytest.approx(12.5 * GB, rel=1e-6)
    assert seconds(ring, 3e9) == pytest.approx(1e9 / 12.5e9, rel=1e-6)


def test_a_tapered_fabric_holds_a_wide_exchange_back_and_no_narrow_one() -> None:
    inside, whole = axis(48, 1, 24), axis(48, 1, 48)
    placement = contiguous(MINIMAL, 48)
    assert {ring.fabric_share for ring in exchange(MINIMAL, placement, inside)} == {1.0}
    (ring,) = exchange(MINIMAL, placement, whole)
    # 24 x 24 pairs between two groups of nodes over one link of 25 GB/s each way.
    assert pair_rate(ring) == pytest.approx(25 * GB / 24**2, rel=1e-4)
    assert ring.fabric_share == pytest.approx(25 / 24**2 / (25 / (2 * 40)), rel=1e-4)


def test_ranks_on_one_leaf_do_not_meet_over_its_uplinks() -> None:
    # Eight nodes, each rail of four of them on one leaf: of 63 peers a rank has 7 in its node, 3 on
    # its leaf, and 53 beyond it, as have the three others there.
    (ring,) = exchange(FEW_UPLINKS, contiguous(FEW_UPLINKS, 64), axis(64, 1, 64))
    beyond = 64 - 8 - 3
    assert pair_rate(ring) == pytest.approx(25 * GB / (4 * beyond), rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(EXACT, worlds())
def test_the_slowest_pair_gets_what_it_gets_among_all_pairs_one_by_one(
    machine: Machine, world: Placed
) -> None:
    placement, (groups, *_) = world
    slowest = min(pair_rate(ring) for ring in exchange(machine, placement, groups))
    each = flow_rates(machine, placement, *every_pair(groups))
    assert slowest == pytest.approx(each.min(), rel=1e-4)


@settings(deadline=None, max_examples=12)
@given(EXACT, worlds())
def test_the_last_group_ends_when_the_last_of_all_flows_does(
    machine: Machine, world: Placed
) -> None:
    placement, (groups, *_) = world
    groups = groups[:6, :8]
    last = max(seconds(r, 1e9 * r.ranks) for r in exchange(machine, placement, groups))
    assert last == pytest.approx(last_end_s(machine, placement, groups, 1e9), rel=1e-4)


@few_and_many(
    12,
    40,
    settings(deadline=None),
    machine=st.sampled_from([TAPERED, MINIMAL, SWITCHED]),
    world=worlds(),
    pairs=st.lists(st.booleans(), min_size=3),
)
def test_an_exchange_never_gains_by_an_axis_beside_it_nor_lets_one_gain(
    machine: Machine, world: Placed, pairs: list[bool]
) -> None:
    placement, axes = world
    pairs = [True, *pairs][: len(axes)]
    fewer = rings_together(machine, placement, axes[:-1], pairs[:-1])
    more = rings_together(machine, placement, axes, pairs)
    alone = rings_together(machine, placement, axes[:1], pairs[:1])
    for (before, wider), (after, shared) in [*zip(fewer, more, strict=False), (alone[0], more[0])]:
        for one, other in zip(before, after, strict=True):
            assert shared[other].bytes_per_s <= wider[one].bytes_per_s
    # Beside one axis more or less the rings in a node are packed anew, and may fit better.
    for one, other in zip(alone[0][0], more[0][0], strict=True):
        inside = [
            found[n].within_bytes_per_s for found, n in ((alone[0][1], one), (more[0][1], other))
        ]
        assert inside[1] <= inside[0] * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([TAPERED, MINIMAL, SWITCHED]), worlds())
def test_no_nic_sends_more_than_it_can(machine: Machine, world: Placed) -> None:
    placement, (groups, *_) = world
    nics, of_device = machine.node.nics, np.array(machine.node.nics.of_device)
    for ring, group in zip(exchange(machine, placement, groups), groups, strict=True):
        node, nic = placement.node[group], of_device[placement.device[group]]
        away = np.array([(node != own).sum() for own in node])
        sent = np.bincount(node * nics.count + nic, weights=away).max()
        if sent:
            assert pair_rate(ring) * sent <= nics.bytes_per_s * (1 + 1e-6)


@few_and_many(
    20,
    100,
    settings(),
    doublings=st.integers(1, 34),
    power=st.integers(10, 40),
    algorithm=st.sampled_from(["pairwise", "hierarchical"]),
)
def test_more_bytes_take_longer(doublings: int, power: int, algorithm: str) -> None:
    machine = with_settings(FRONTIER, {"software.algorithm.all_to_all": algorithm})
    (ring,) = exchange(machine, contiguous(machine, 64), axis(64, 1, 64))
    fewer, more = (
        collective_seconds(machine, "all_to_all", 2.0**n, ring)
        for n in (power, min(power + doublings, 60))
    )
    assert fewer < more <= 2 ** (min(power + doublings, 60) - power) * fewer


@settings(deadline=None, max_examples=30)
@given(EXACT, worlds())
def test_distance_is_the_mean_over_all_pairs_of_nodes(machine: Machine, world: Placed) -> None:
    placement, (groups, *_) = world
    network, means = machine.network, [0.0]
    for group in groups:
        nodes = np.unique(placement.node[group]).tolist()
        if len(nodes) > 1:
            here, there = np.array(list(permutations(nodes, 2)), dtype=np.int64).T
            means.append(float((switches_between(network, here, there) - 1).mean()))
    expected = max(means) * machine.interconnect.switch_latency_s  # type: ignore[union-attr]
    assert pairs_further_seconds(network, visits_of(placement, groups)) == pytest.approx(expected)


@pytest.mark.parametrize(("inner", "size"), [(1, 32768), (16, 2048)])
def test_thirty_thousand_ranks_take_memory_by_the_rank_and_not_by_the_pair(
    inner: int, size: int
) -> None:
    """With a byte for each pair one group of all takes 1 GB, and 16 groups take 67 MB."""
    ranks = 32768
    placement, groups = contiguous(FRONTIER, ranks), axis(ranks, inner, size)
    tracemalloc.start()
    assert exchange(FRONTIER, placement, groups)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1000 * ranks


def test_two_steps_send_fewer_larger_messages_across_and_more_bytes_inside() -> None:
    ring = Ring(64, 8, 8, 100 * GB, 87.5 * GB)
    inside, across = algorithms.two_steps(64e6, group_of(ring))
    assert (inside.moved_bytes, inside.steps, inside.chunk_bytes) == (56e6, 7, 8e6)
    assert (across.moved_bytes, across.hops, across.chunk_bytes) == (448e6, 7, 8e6)
    (flat,) = algorithms.pairwise(64e6, group_of(ring))
    assert (flat.moved_bytes, flat.hops, flat.chunk_bytes) == (448e6, 56, 1e6)
    # Four ranks in each of eight nodes: a quarter to each of 3 neighbours, then an eighth to each
    # of 7 nodes, for all four by the same NICs.
    inside, across = algorithms.two_steps(64e6, group_of(replace(ring, ranks=32)))
    assert (inside.moved_bytes, inside.chunk_bytes) == (48e6, 16e6)
    assert (across.moved_bytes, across.chunk_bytes) == (224e6, 8e6)
    alone = replace(ring, ranks=8, devices_per_node=1, within_bytes_per_s=float("inf"))
    assert algorithms.two_steps(64e6, group_of(alone)) == algorithms.pairwise(64e6, group_of(alone))
