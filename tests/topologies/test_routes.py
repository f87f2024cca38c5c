"""Flows cross NICs, bundles and uplinks; every number worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from topologies.collectives import algorithms
from topologies.collectives.algorithms import DeviceGroup
from topologies.hardware.software import Curve
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous, scattered
from topologies.routing.adaptive_routing import granted
from topologies.routing.point_to_point import flow_rates
from topologies.routing.rings import rings

GB = 1e9
FRONTIER = load_machine("frontier")
DGX = load_machine("dgx-h100")


def tapered(routing: str) -> Machine:
    """Four groups of four Frontier nodes, one link of 25 GB/s between any two groups."""
    size = {"nodes": "16", "interconnect.groups": "4", "interconnect.nodes_per_group": "4"}
    changes = {"interconnect.global_links": "1", "interconnect.routing": routing}
    return with_settings(FRONTIER, size | changes)


def flows(machine: Machine, pairs: list[tuple[int, int]]) -> list[float]:
    source, target = np.array(pairs).T
    ranks = contiguous(machine, machine.devices)
    return [float(rate) / GB for rate in flow_rates(machine, ranks, source, target)]


@pytest.mark.parametrize(("sharers", "rate"), [(2, 25), (4, 25), (8, 12.5)])
def test_groups_through_one_node_share_its_nics(sharers: int, rate: float) -> None:
    # Two groups on GCDs 0 and 2, or four on 0, 2, 4 and 6, have a NIC each; eight have half.
    step = 2 if sharers <= 4 else 1
    members = np.array([[step * i, 8 + step * i] for i in range(sharers)])
    index, found = rings(FRONTIER, contiguous(FRONTIER, 16), members)
    assert [found[i].bytes_per_s / GB for i in index] == [rate] * sharers


def test_groups_in_one_dragonfly_group_outrun_those_spread_over_all() -> None:
    # 16 nodes of 4 groups, rings of 4 nodes on GCD 0 with a NIC each. Inside a group: 25 GB/s.
    # One node of each group: four rings between neighbours 0-1-2-3-0; each bundle of 25 GB/s has
    # four of them, minimal; with detours over the two groups opposite, 4 bundles for 2 x 4 hops.
    inside = np.arange(0, 128, 8).reshape(4, 4)
    over = inside.T.copy()
    for routing, spread in (("minimal", 25 / 4), ("adaptive", 12.5)):
        machine = tapered(routing)
        ranks = contiguous(machine, 128)
        assert rings(machine, ranks, inside)[1][0].bytes_per_s == 25 * GB
        assert rings(machine, ranks, over)[1][0].bytes_per_s == pytest.approx(spread * GB, rel=1e-3)


@pytest.mark.parametrize(
    ("efficiency", "reached"),
    [(0.74, 12.5), (0.4, 10.0)],  # NICs of 25 GB/s, bundles that leave 12.5
)
def test_nics_and_global_links_hold_a_ring_back_by_the_lesser_and_not_by_both(
    efficiency: float, reached: float
) -> None:
    machine = tapered("adaptive")
    over = np.arange(0, 128, 8).reshape(4, 4).T.copy()
    (ring,) = rings(machine, contiguous(machine, 128), over)[1]
    assert ring.fabric_share == pytest.approx(0.5, rel=1e-3)
    curve = Curve(0.0, efficiency, 1.0)
    phases = algorithms.ring(4e9, DeviceGroup(ring, math.inf))
    expected = pytest.approx(3e9 / (reached * GB), rel=1e-3)
    assert algorithms.seconds(curve, phases, ring) == expected


def test_a_ring_that_its_nics_hold_back_gets_the_librarys_share_of_them() -> None:
    (ring,) = rings(FRONTIER, contiguous(FRONTIER, 64), np.arange(64).reshape(1, 64))[1]
    assert (ring.bytes_per_s, ring.fabric_share) == (100 * GB, 1.0)
    assert ring.reached_share(0.74) == 0.74


@pytest.mark.parametrize("routing", ["minimal", "adaptive"])
def test_an_all_to_all_across_a_tapered_bisection_gets_the_bundles_between_the_halves(
    routing: str,
) -> None:
    # GCD 0 of each of 8 nodes sends to that of each of the 8 others, in groups 2 and 3: 64 flows,
    # 16 for each of the four bundles of 25 GB/s. NICs alone would allow 25/8 GB/s each.
    machine = tapered(routing)
    pairs = [(8 * a, 8 * b) for a in range(8) for b in range(8, 16)]
    straight = 25 / 16
    # Detours add nothing across the cut: only its own four bundles join the halves.
    assert flows(machine, pairs) == pytest.approx([straight] * 64, rel=1e-3)


def test_copies_without_a_direct_link_are_staged() -> None:
    # GCDs 0 and 1 have four links; 0 and 6 two; 0 and 7 none: 0-6-7 has two links of 50 GB/s.
    assert flows(FRONTIER, [(0, 1)]) == [200]
    assert flows(FRONTIER, [(0, 6)]) == [100]
    assert flows(FRONTIER, [(0, 3)]) == [50]
    assert flows(FRONTIER, [(0, 0), (0, 8), (8, 0)]) == [float("inf"), 25, 25]


def test_a_nic_sends_and_receives_at_once_and_shares_each_way() -> None:
    assert flows(FRONTIER, [(0, 8), (1, 9), (16, 0)]) == [12.5, 12.5, 25]


def test_devices_on_a_node_switch_share_their_own_links_alone() -> None:
    assert flows(DGX, [(0, 1), (2, 3)]) == [450, 450]
    assert flows(DGX, [(0, 1), (0, 2), (3, 2)]) == [225, 225, 225]


def test_devices_of_one_index_meet_on_a_leaf() -> None:
    # No uplinks to speak of: same rail, same unit is not held back; another rail is.
    thin = with_settings(DGX, {"interconnect.uplinks_per_leaf": "1"})
    assert flows(thin, [(8 * n, 8 * (n + 1)) for n in range(0, 30, 2)]) == [50] * 15
    assert flows(thin, [(0, 9), (16, 25)]) == [25, 25]
    unit = 32 * 8
    assert flows(thin, [(0, unit), (8, unit + 8)]) == [25, 25]


@pytest.mark.parametrize(("routing", "alone"), [("minimal", 6.25), ("adaptive", 12.5)])
def test_other_jobs_take_their_share_of_every_bundle(routing: str, alone: float) -> None:
    # Four rings over four groups, held back by the links between these: see above.
    quiet = tapered(routing)
    over = np.arange(0, 128, 8).reshape(4, 4).T.copy()
    for background in (0.0, 0.2):
        busy = with_settings(quiet, {"interconnect.background": str(background)})
        (ring,) = rings(busy, contiguous(busy, 128), over)[1]
        left = alone * (1 - background) * GB
        assert ring.bytes_per_s == pytest.approx(left, rel=1e-3)


def test_other_jobs_take_their_share_of_every_uplink() -> None:
    # An uplink of 50 GB/s for two flows between leaves, whose NICs of 50 GB/s have 40 left.
    thin = {"interconnect.uplinks_per_leaf": "1", "interconnect.background": "0.2"}
    assert flows(with_settings(DGX, thin), [(0, 9), (16, 25)]) == pytest.approx([20, 20])


def test_the_fat_tree_has_full_bisection() -> None:
    half = DGX.devices // 2
    assert flows(DGX, [(i, half + i) for i in range(half)]) == [50] * half


def test_a_ring_over_all_units_has_all_rails() -> None:
    members = np.arange(DGX.devices)[None, :]
    _, found = rings(DGX, contiguous(DGX, DGX.devices), members)
    assert found[0].bytes_per_s == 400 * GB


def test_a_quiet_pair_of_groups_is_not_held_back_by_a_crowded_one() -> None:
    demand = np.zeros((5, 5))
    demand[0, 1], demand[2, 3] = 1000, 100
    assert granted(demand, 100)[2, 3] == 100
    # Straight and over groups 2, 3 and 4: 2-3 itself is no part of any way from 0 to 1.
    assert granted(demand, 100)[0, 1] == pytest.approx(400, rel=1e-3)


def test_what_a_crowded_pair_does_not_use_is_left_whole_for_another() -> None:
    """From 0 to 1, straight and over 2: two bundles' worth of ten. From 1 to 0 all bundles are the
    other ones, and two bundles' worth is what they carry."""
    demand = np.zeros((3, 3))
    demand[0, 1], demand[1, 0] = 10, 2
    found = granted(demand, 1.0)
    assert (found[0, 1], found[1, 0]) == pytest.approx((2, 2), rel=1e-3)


def test_shifted_traffic_gets_half_of_all_bundles() -> None:
    n = 10
    demand = np.roll(np.eye(n), 1, axis=1) * 1e6
    # Own bundle straight; the other n - 2 carry two hops of each detour: 1 + (n - 2)/2.
    assert granted(demand, 1.0)[0, 1] == pytest.approx(n / 2, rel=1e-3)


MATRICES = st.integers(3, 7).flatmap(
    lambda n: st.lists(
        st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5, 10.0, 60.0]), min_size=n * n, max_size=n * n
    )
)


@few_and_many(25, 100, settings(deadline=None), entries=MATRICES)
def test_what_bundles_grant_fits_every_cut_and_shrinks_no_more_than_the_straight_routes(
    entries: list[float],
) -> None:
    n = int(len(entries) ** 0.5)
    demand = np.array(entries).reshape(n, n) * (1 - np.eye(n))
    found = granted(demand, 1.0)
    assert (found <= demand * (1 + 1e-9)).all()
    assert (found >= demand / max(1.0, demand.max()) * (1 - 1e-3)).all()
    for size in range(1, n):
        for part in itertools.combinations(range(n), size):
            rest = [g for g in range(n) if g not in part]
            assert found[np.ix_(part, rest)].sum() <= size * (n - size) * (1 + 1e-6)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[int, int]]:
    rank = st.integers(0, 127)
    return draw(st.lists(st.tuples(rank, rank).filter(lambda p: p[0] != p[1]), min_size=1,
                         max_size=60))  # fmt: skip


@few_and_many(
    20,
    100,
    settings(deadline=None),
    pairs=traffic(),
    routing=st.sampled_from(["minimal", "adaptive"]),
)
def test_no_flow_exceeds_a_link_and_none_can_gain_without_a_poorer_one_losing(
    pairs: list[tuple[int, int]], routing: str
) -> None:
    machine = tapered(routing)
    rates = flows(machine, pairs)
    load: dict[tuple[str, int, int], float] = {}
    for (a, b), rate in zip(pairs, rates, strict=True):
        for link in links_of(a, b):
            load[link] = load.get(link, 0.0) + rate
    for (kind, *_), carried in load.items():
        ceiling = {"out": 25, "in": 25, "bundle": 25 if routing == "minimal" else 75}
        assert kind == "copy" or carried <= ceiling[kind] * (1 + 1e-6)
    if routing == "minimal":
        for (a, b), rate in zip(pairs, rates, strict=True):
            if a // 8 != b // 8:
                assert any(
                    load[link] >= 25 * (1 - 1e-6)
                    and all(
                        other <= rate * (1 + 1e-6)
                        for pair, other in zip(pairs, rates, strict=True)
                        if link in links_of(*pair)
                    )
                    for link in links_of(a, b)
                )


def links_of(a: int, b: int) -> list[tuple[str, int, int]]:
    if a // 8 == b // 8:
        return [("copy", a, b)]
    found = [("out", a // 8, a % 8 // 2), ("in", b // 8, b % 8 // 2)]
    here, there = a // 32, b // 32
    return found + [("bundle", here, there)] * (here != there)


def test_a_job_scattered_over_more_groups_sees_more_bundles() -> None:
    machine = with_settings(FRONTIER, {"interconnect.routing": "minimal"})
    members = np.arange(2048).reshape(2, 1024).T.copy()
    two = rings(machine, scattered(machine, 2048, groups=2), members)[1]
    many = rings(machine, scattered(machine, 2048, groups=64), members)[1]
    assert min(r.bytes_per_s for r in two) < min(r.bytes_per_s for r in many)


def test_placements_with_equal_arrays_are_one_key_of_a_cache() -> None:
    a, b = contiguous(FRONTIER, 64), contiguous(FRONTIER, 64)
    assert (a, hash(a)) == (b, hash(b))
    assert a != Placement(a.node + 1, a.device)
