"""Rank classes and whom they meet, on grids small enough to see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from simulator.engine.ticks import TICKS_PER_S
from simulator.ranks.classes import UnlikeRanksError, classes_of
from simulator.ranks.fabric import MachineFabric
from tests.simulator.worlds import TINY, SmallFabric, by_hand, lowered, reduce
from topologies.collectives.collective_time import with_algorithm
from topologies.machine_files import load_machine
from topologies.routing.rings import Ring
from workload.op import Op
from workload.transport import PLAIN


def meeting_over(*axes: str) -> list[Op]:
    return [reduce(f"over.{axis}", "a", axis, 4) for axis in axes]


def test_ranks_that_fill_nodes_evenly_are_all_alike() -> None:
    network = classes_of([lowered(TINY, "tp=4,z=2,dp=2")], SmallFabric())
    assert network.ranks == (0,)
    assert all(class_groups.sizes == (1,) for class_groups in network.class_groups.values())


def test_groups_that_straddle_nodes_unevenly_make_classes_of_their_own() -> None:
    """tp=3 on nodes of 4: ranks 0-2 and 9-11 lie within a node, 3-5 and 6-8 across two."""
    network = classes_of([by_hand("tp=3,dp=4", *meeting_over("tp"))], SmallFabric())
    assert network.ranks == (0, 3)
    assert network.class_groups["tp",].sizes == (1, 1)


def test_a_class_splits_where_its_members_meet_different_classes() -> None:
    """tp=3, y=2 on nodes of 4: 0-2 are in one node and meet, over y, 3-5, which are in two."""
    network = classes_of([by_hand("tp=3,y=2,z=2", *meeting_over("tp", "y"))], SmallFabric())
    assert len(network.ranks) > 1
    over_y = network.class_groups["y",]
    assert max(over_y.sizes) == 2
    assert sum(over_y.sizes) == len(network.ranks)


@dataclass(frozen=True)
class Pairs(SmallFabric):
    """Pairs of ranks on rings alike but for that of ranks 0 and 1, which is slow while `slow_with`
    axes are active at once or more."""

    slow_with: int = 1

    def rings(self, together, pairs=()):  # type: ignore[no-untyped-def]
        slow = len(together) >= self.slow_with
        return [
            ((3.0, 5.0), np.array([int(slow and pair == [0, 1]) for pair in groups.tolist()]))
            for groups in together
        ]

    def seconds(self, transport, payload_bytes, ring):  # type: ignore[no-untyped-def]
        return ring


def test_ranks_on_like_rings_are_told_apart_by_whom_they_meet() -> None:
    """Over x ranks 0 and 1 have a slow ring; 2 and 3, on fast ones, wait for these over y; the
    other four meet nobody who is slow."""
    program = by_hand("tp=2,y=2,dp=2", *meeting_over("tp", "y"))
    network = classes_of([program], Pairs())
    assert network.ranks == (0, 2, 4)
    assert network.groups.classes.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    assert network.class_groups["y",].members == [[0, 1], [2]]


def test_ranks_are_told_apart_by_rings_that_differ_only_while_two_axes_are_in_flight() -> None:
    over_x, over_y = meeting_over("tp", "y")
    program, both = by_hand("tp=2,y=2,dp=2", over_x, over_y), (("tp",), ("y",))
    network = classes_of([program], Pairs(slow_with=2))
    assert network.ranks == (0,)
    with pytest.raises(UnlikeRanksError):
        network.ticks(over_x, both)
    apart = classes_of([program], Pairs(slow_with=2), contended=[both])
    assert apart.ranks == (0, 2, 4)
    assert apart.ticks(over_x) == [3 * TICKS_PER_S] * 3
    assert apart.ticks(over_x, both) == [5 * TICKS_PER_S, 3 * TICKS_PER_S, 3 * TICKS_PER_S]


@pytest.mark.parametrize("plan", ["tp=3,y=2,z=4", "tp=3,dp=8", "y=3,z=5", "tp=5,z=3,dp=2"])
def test_members_of_a_class_meet_the_same_classes_over_the_same_rings(plan: str) -> None:
    program = by_hand(plan, *meeting_over(*(word.partition("=")[0] for word in plan.split(","))))
    folded = classes_of([program], SmallFabric())
    every = classes_of([program], SmallFabric(), unfold=True)
    for axes, class_groups in folded.class_groups.items():
        for number, rank in enumerate(folded.ranks):
            assert class_groups.rings[number] == every.class_groups[axes].rings[rank]
        assert set(class_groups.rings) == set(every.class_groups[axes].rings)


def test_more_classes_than_can_be_simulated_count_as_the_slowest() -> None:
    """Each of 80 pairs has another ring; all take as long as the slowest."""

    class Unlike(SmallFabric):
        """A ring for each group, by its number."""

        def rings(self, together, pairs=()):  # type: ignore[no-untyped-def]
            return [(range(len(groups)), np.arange(len(groups))) for groups in together]

        def seconds(self, transport, payload_bytes, ring):  # type: ignore[no-untyped-def]
            return 1.0 + ring

    (op,) = meeting_over("tp")
    network = classes_of([by_hand("tp=2,dp=80", op)], Unlike())
    assert network.ranks == (0,)
    assert network.ticks(op) == [80 * TICKS_PER_S]
    few = classes_of([by_hand("tp=2,dp=8", op)], Unlike())
    assert few.ticks(op) == [number * TICKS_PER_S for number in range(1, 9)]


def test_collectives_of_as_many_bytes_over_unlike_groups_last_as_their_own_rings() -> None:
    """4 MB at 1 MB/s on two nodes of 4, twice round: over x 3/4 of them in a node of one group;
    over data 1/2 in each of four groups that share two nodes; over both together 7/8."""
    x, data = (reduce(f"over.{axis}", "a", axis, 4_000_000) for axis in ("tp", "dp"))
    both = replace(x, name="over.both", axes=("tp", "dp"))
    network = classes_of([by_hand("tp=4,dp=2", x, data, both)], SmallFabric(launch_s=0.0))
    seconds = [[each / TICKS_PER_S for each in network.ticks(op)] for op in (x, data, both)]
    assert seconds == [[6.0], [16.0], [7.0]]
    assert network.ticks(replace(x, nbytes=1_000_000)) == [3 * TICKS_PER_S // 2]


def test_the_slowest_of_rings_that_differ_otherwise_too_is_among_those_kept() -> None:
    """Across nodes a hierarchical collective is as slow as the links inside them may be."""
    machine = with_algorithm(load_machine("frontier"), "all_gather", "hierarchical")
    fabric = MachineFabric(machine, 64)
    shape = Ring(ranks=8, nodes=2, devices_per_node=4, bytes_per_s=2e10, within_bytes_per_s=1e9)
    rings = [shape, replace(shape, bytes_per_s=1.9e10, within_bytes_per_s=1e12)]
    times = [fabric.seconds(PLAIN["all_gather"], 1 << 24, ring) for ring in rings]
    assert times[0] > times[1]
    assert (
        max(fabric.seconds(PLAIN["all_gather"], 1 << 24, r) for r in fabric.slowest(rings))
        == times[0]
    )
