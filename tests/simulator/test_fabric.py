"""The machine's own network as a fabric: what it says of its ranks, rings and messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.predict import predict
from simulator.ranks.fabric import MachineFabric
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement
from topologies.routing.rings import Ring
from workload.gpt import find_model
from workload.plan_text import parse_plan
from workload.transport import PLAIN

FRONTIER = load_machine("frontier")


def test_of_rings_that_differ_in_their_rate_alone_the_extremes_are_kept() -> None:
    ring = Ring(ranks=8, nodes=2, devices_per_node=4, bytes_per_s=2e10)
    other = replace(ring, nodes=4)
    rings = [ring, replace(ring, bytes_per_s=1e10), replace(ring, bytes_per_s=3e10), other]
    fabric = MachineFabric(FRONTIER, 8)
    assert fabric.slowest(rings) == [replace(ring, bytes_per_s=1e10), other]
    assert fabric.fastest(rings) == [replace(ring, bytes_per_s=3e10), other]


def test_of_two_rings_each_slower_in_one_way_both_are_kept() -> None:
    """NICs of 20 GB/s, or NICs of 40 behind links that leave 15: which is slower the library's
    efficiency says. What has NICs of 50 behind links that leave 18 is not the slowest."""
    nics = Ring(ranks=8, nodes=2, devices_per_node=4, bytes_per_s=2e10)
    links = replace(nics, bytes_per_s=1.5e10, fabric_share=0.375)
    between = replace(nics, bytes_per_s=1.8e10, fabric_share=0.36)
    fabric = MachineFabric(FRONTIER, 8)
    assert fabric.slowest([nics, between, links]) == [links, nics]
    assert fabric.fastest([nics, between, links]) == [nics, between]


def test_the_fullest_node_says_how_many_ranks_share_one() -> None:
    """Three ranks on the first node, and one on the third."""
    placement = Placement(node=np.array([0, 0, 0, 2]), device=np.array([0, 1, 2, 0]))
    assert MachineFabric(FRONTIER, 4, placement).ranks_per_node == 3


def test_what_the_machine_says_of_interference_is_taken_from_compute_beside_collectives() -> None:
    """Without overlap there is nothing beside collectives, so nothing is taken."""
    gpt = find_model("gpt-5b")
    undisturbed, disturbed = (
        with_settings(FRONTIER, {"software.compute_share": share}) for share in (0, 0.3)
    )
    assert MachineFabric(disturbed, 8).compute_share == 0.3
    for overlap, grows in (("all", True), ("none", False)):
        plan = parse_plan(f"z=8,dp=2,overlap={overlap}", batch=16)
        before, after = (
            predict(gpt, plan, machine).breakdown_s["compute"]
            for machine in (undisturbed, disturbed)
        )
        assert (after > 1.01 * before) == grows
        assert after >= before


def test_the_share_of_compute_that_collectives_take_is_each_devices_own() -> None:
    """24 blocks of a collective on the 132 multiprocessors of an H100, or the 108 of an A100."""
    shares = [load_machine(name).software.compute_share for name in ("dgx-h100", "dgx-a100")]
    assert shares == [round(24 / 132, 3), round(24 / 108, 3)]


def test_what_a_bucket_of_gradients_takes_and_costs_grows_with_its_ranks() -> None:
    """25 MB in one node and over 2 to 16: more hops, and compute beside loses a share of them."""
    own = load_machine("dgx-a100")
    times = []
    for ranks in (8, 16, 32, 64, 128):
        fabric = MachineFabric(own, ranks)
        (ring,) = fabric.rings([np.arange(ranks).reshape(1, ranks)])[0][0]
        times.append(fabric.seconds(PLAIN["all_reduce"], 25_000_000, ring))
    assert times == sorted(times)
    assert times[-1] > 1.2 * times[0]
