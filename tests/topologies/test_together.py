"""Axes that are active at once share links, and nobody gains by another's joining."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.examples import few_and_many
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, contiguous
from topologies.routing.point_to_point import flow_rates
from topologies.routing.rings import rings, rings_together

GB = 1e9
FRONTIER = load_machine("frontier")
SIZE = {"nodes": "12", "interconnect.groups": "4", "interconnect.nodes_per_group": "3"}
TAPERED = with_settings(FRONTIER, SIZE | {"interconnect.global_links": "1"})
MINIMAL = with_settings(TAPERED, {"interconnect.routing": "minimal"})
SWITCHED = with_settings("dgx-a100", {"nodes": "12", "interconnect.nodes_per_unit": "4"})
RANKS = 48
Groups = NDArray[np.int64]


def axis(ranks: int, inner: int, size: int) -> Groups:
    grid = np.arange(ranks).reshape(ranks // (inner * size), size, inner)
    return grid.transpose(0, 2, 1).reshape(-1, size)


def rates(machine: Machine, placement: Placement, axes: list[Groups]) -> list[list[float]]:
    found = rings_together(machine, placement, axes)
    return [[different[i].bytes_per_s for i in index] for index, different in found]


def test_two_axes_across_nodes_halve_the_nics() -> None:
    # Stride 8 and stride 16, one GCD each per node: half a NIC alone, a quarter together.
    placement = contiguous(FRONTIER, 32)
    both = rates(FRONTIER, placement, [axis(32, 8, 2), axis(32, 16, 2)])
    assert both == [[6.25 * GB] * 16, [6.25 * GB] * 16]
    assert rates(FRONTIER, placement, [axis(32, 8, 2)]) == [[12.5 * GB] * 16]


def test_an_axis_in_the_node_does_not_feel_one_across_nodes() -> None:
    both = rates(FRONTIER, contiguous(FRONTIER, 16), [axis(16, 1, 8), axis(16, 8, 2)])
    assert both == [[200 * GB] * 2, [12.5 * GB] * 8]


def test_two_axes_in_the_node_share_its_links() -> None:
    # The axes take turns. Two rings of eight pass 0-1, 2-3, … in opposite directions, so three of
    # the four links of these pairs are left in each; then no ring of eight is left.
    both = rates(FRONTIER, contiguous(FRONTIER, 8), [axis(8, 1, 8), axis(8, 1, 2)])
    assert both == [[100 * GB], [150 * GB] * 4]


def test_two_axes_on_a_node_switch_halve_each_devices_links() -> None:
    both = rates(SWITCHED, contiguous(SWITCHED, 8), [axis(8, 1, 8), axis(8, 1, 2)])
    assert both == [[150 * GB], [150 * GB] * 4]


def test_a_ring_across_nodes_shares_the_links_inside_them_with_other_axes() -> None:
    """16 devices in two nodes, whose switch has 300 GB/s for each, and pairs in the nodes."""
    placement = contiguous(SWITCHED, 16)
    whole, pairs = axis(16, 1, 16), axis(16, 1, 2)
    ((_, (alone,)),) = rings_together(SWITCHED, placement, [whole])
    (_, (ring,)), (_, (inside,)) = rings_together(SWITCHED, placement, [whole, pairs])
    assert (alone.within_bytes_per_s, ring.within_bytes_per_s) == (300 * GB, 150 * GB)
    assert (inside.nodes, inside.bytes_per_s) == (1, 150 * GB)
    assert inside.within_bytes_per_s == float("inf")
    assert (alone.bytes_per_s, ring.bytes_per_s) == (200 * GB, 150 * GB)  # eight NICs of 25


def test_axes_of_one_rank_take_nothing() -> None:
    found = rings_together(FRONTIER, contiguous(FRONTIER, 16), [axis(16, 1, 1), axis(16, 8, 2)])
    assert found[0][1][0].bytes_per_s == float("inf")
    assert found[1][1] == rings(FRONTIER, contiguous(FRONTIER, 16), axis(16, 8, 2))[1]


def test_other_jobs_take_their_share_of_every_nic() -> None:
    busy = with_settings(FRONTIER, {"interconnect.background": "0.2"})
    assert rates(busy, contiguous(busy, 16), [axis(16, 8, 2)]) == [[10 * GB] * 8]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Placement, list[Groups]]:
    """A scattered placement of 48 ranks, and two or three ways to split them into groups."""
    order = np.array(draw(st.permutations(range(12))))[:6]
    placement = Placement(np.repeat(order, 8), np.tile(np.arange(8), 6))
    sizes = draw(st.lists(st.sampled_from([2, 3, 4, 6, 8, 12, 24]), min_size=2, max_size=3))
    seeds = draw(st.lists(st.integers(0, 999), min_size=3, max_size=3))
    axes = []
    for size, seed in zip(sizes, seeds, strict=False):
        ranks = (
            np.arange(RANKS) if seed % 3 == 0 else np.random.default_rng(seed).permutation(RANKS)
        )
        axes.append(ranks.reshape(-1, size) if seed % 2 else ranks.reshape(size, -1).T.copy())
    return placement, axes


MACHINES = st.sampled_from([TAPERED, MINIMAL, SWITCHED])


@few_and_many(15, 60, settings(deadline=None), machine=MACHINES, world=worlds())
def test_adding_an_axis_never_raises_a_rate(
    machine: Machine, world: tuple[Placement, list[Groups]]
) -> None:
    placement, axes = world
    fewer, more = rates(machine, placement, axes[:-1]), rates(machine, placement, axes)
    for before, after in zip(fewer, more, strict=False):
        assert all(b <= a for a, b in zip(before, after, strict=True))


@few_and_many(
    10, 40, settings(deadline=None), machine=MACHINES, world=worlds(), factor=st.floats(0.2, 0.95)
)
def test_nothing_gets_faster_when_all_links_slow_down(
    machine: Machine, world: tuple[Placement, list[Groups]], factor: float
) -> None:
    placement, axes = world
    slow = slower(machine, ["node.links", "node.nics", "interconnect.link_"], factor)
    for before, after in zip(
        rates(machine, placement, axes), rates(slow, placement, axes), strict=True
    ):
        assert all(b <= a * (factor + 1e-3) for a, b in zip(before, after, strict=True))


@few_and_many(
    15,
    60,
    settings(deadline=None),
    machine=MACHINES,
    pairs=st.lists(st.tuples(st.integers(0, 47), st.integers(48, 95)), min_size=1, max_size=60),
    kind=st.sampled_from(["node.links", "node.nics", "interconnect.link_"]),
)
def test_the_slowest_flow_is_never_faster_where_one_kind_of_link_slows_down(
    machine: Machine, pairs: list[tuple[int, int]], kind: str
) -> None:
    # Single flows and not rings: a ring is the sum of its channels, and while the slowest of all
    # channels never gains, a ring of faster ones may.
    ranks = contiguous(machine, 96)
    source, target = np.array(pairs).T
    before = flow_rates(machine, ranks, source, target).min()
    after = flow_rates(slower(machine, [kind], 0.5), ranks, source, target).min()
    assert after <= before * (1 + 1e-3)


def slower(machine: Machine, kinds: list[str], factor: float) -> Machine:
    changes = {}
    for fact in machine.entries:
        if fact.key.endswith("bandwidth") and any(fact.key.startswith(kind) for kind in kinds):
            changes[fact.key] = f"{float(fact.value.split()[0]) * factor} GB/s"
    assert changes
    return with_settings(machine, changes)


@few_and_many(
    10,
    40,
    settings(deadline=None),
    machine=MACHINES,
    world=worlds(),
    groups=st.permutations(range(4)),
    nodes=st.permutations(range(3)),
)
def test_relabelling_groups_and_nodes_changes_nothing(
    machine: Machine, world: tuple[Placement, list[Groups]], groups: list[int], nodes: list[int]
) -> None:
    placement, axes = world
    size = 4 if machine is SWITCHED else 3
    groups = [g for g in groups if g < 12 // size]
    new = [groups[n // size] * size + ([*nodes, 3] if size == 4 else nodes)[n % size]
           for n in range(12)]  # fmt: skip
    moved = Placement(np.array(new)[placement.node], placement.device)
    for a, b in zip(rates(machine, placement, axes), rates(machine, moved, axes), strict=True):
        assert b == pytest.approx(a, rel=2e-3)
