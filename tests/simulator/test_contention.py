"""Collectives in flight at once: times worked out by hand, and bounds that hold in any world."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.contention import Contention
from simulator.engine.simulate import SimulatedOps, simulate_timeline, simulate_unfolded
from simulator.engine.ticks import TICKS_PER_S
from simulator.predict import predict
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import (
    TINY,
    GivenSeconds,
    SmallCosts,
    SmallFabric,
    by_hand,
    compute,
    lowered,
    plan_of,
    reduce,
)
from topologies.machine_files import load_machine
from topologies.placement import Placement
from workload.gpt import find_model
from workload.op import Op

MB = 1_000_000
ONE_NIC = SmallFabric(bytes_per_s=1e6, launch_s=0.0, devices_per_node=1)  # 1 MB in 1 s, alone


def spans(*ops: Op, plan: str = "tp=2,y=2", **costs: float) -> dict[str, tuple[float, float]]:
    timeline = simulate_timeline([by_hand(plan, *ops)], GivenSeconds(**costs), ONE_NIC)
    return {span.op.name: (span.start_s, span.end_s) for span in timeline.of_rank(0)}


def test_two_axes_through_one_nic_share_it_while_they_overlap() -> None:
    """Over x half is done when the other begins; the rest takes twice as long. Over y half is done
    by then, and the rest takes its time alone."""
    times = spans(
        reduce("over.x", "a", "tp", MB, "tp"),
        compute("work", writes="b"),
        reduce("over.y", "b", "y", MB, "y"),
        work=0.5,
    )
    assert times["over.x"] == (0.0, 1.5)
    assert times["over.y"] == (0.5, 2.0)


def test_a_short_collective_delays_a_long_one_by_its_own_time() -> None:
    times = spans(
        reduce("over.x", "a", "tp", MB, "tp"),
        compute("work", writes="b"),
        reduce("over.y", "b", "y", MB // 4),
        work=0.5,
    )
    assert times["over.y"] == (0.5, 1.0)
    assert times["over.x"] == (0.0, 1.25)


def test_three_at_once_get_a_third_each() -> None:
    ops = [reduce(f"over.{axis}", axis, axis, MB, axis) for axis in ("tp", "y", "z")]
    assert set(spans(*ops, plan="tp=2,y=2,z=2").values()) == {(0.0, 3.0)}


def test_two_collectives_of_one_axis_share_its_links() -> None:
    times = spans(reduce("aside", "a", "tp", MB, "tp"), reduce("blocking", "b", "tp", MB))
    assert times == {"aside": (0.0, 2.0), "blocking": (0.0, 2.0)}


def test_each_of_one_axis_keeps_its_own_pace_beside_another() -> None:
    """A quarter of the bytes at half the rate, then all of them at half the rate."""
    times = spans(
        reduce("over.y", "a", "y", 4 * MB, "y"),
        reduce("small", "b", "tp", MB // 4, "tp"),
        reduce("large", "c", "tp", MB, "tp"),
    )
    assert times == {"over.y": (0.0, 5.25), "small": (0.0, 0.5), "large": (0.5, 2.5)}


def test_one_that_begins_as_another_ends_does_not_slow_it() -> None:
    times = spans(
        reduce("over.x", "a", "tp", MB, "tp"),
        compute("work", writes="b"),
        reduce("over.y", "b", "y", MB, "y"),
        work=1.0,
    )
    assert times == {"over.x": (0.0, 1.0), "work": (0.0, 1.0), "over.y": (1.0, 2.0)}


def test_a_ring_is_as_slow_as_its_slowest_member() -> None:
    """Ranks 0-1 and 2-3 meet over x, 1 and 3 over y: one member in two is enough for half pace."""
    x, y = reduce("over.x", "a", "tp", MB, "tp"), reduce("over.y", "b", "y", MB // 2, "y")
    network = classes_of([by_hand("tp=2,y=2", x, y)], ONE_NIC, unfold=True)
    env = simpy.Environment()
    landed: list[tuple[str, float]] = []
    traffic = Contention[str](env, network, lambda name: landed.append((name, env.now)))
    for op, classes in ((x, [0, 1]), (x, [2, 3]), (y, [1, 3])):
        traffic.begin(op, classes, op.name)
    env.run()
    assert landed.count(("over.x", 3 * TICKS_PER_S // 2)) == 2


WORLDS = {
    "plan": st.sampled_from(["tp=2,y=2,z=2", "z=4,dp=2", "tp=3,z=2,dp=2", "dp=6", "y=3,z=2"]),
    "overlap": st.sampled_from(["all", "oar", "ors+oag", "oar+ors+oag", "ors+dp"]),
    "bytes_per_s": st.floats(1e6, 1e11),
}
WIDE = TINY.changed(hidden=96, heads=12, ffn=96)


def played(plan: str, overlap: str, fabric: SmallFabric) -> SimulatedOps:
    return simulate_unfolded(lowered(WIDE, f"{plan},overlap={overlap}", 2), SmallCosts(), fabric)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(**WORLDS)
def test_every_collective_does_exactly_the_work_that_it_was_asked_for(
    plan: str, overlap: str, bytes_per_s: float
) -> None:
    """1/T of itself per tick, summed over what was in flight meanwhile, is the whole of it."""
    run = played(plan, overlap, SmallFabric(bytes_per_s=bytes_per_s))
    flights = [index for index, op in enumerate(run.program.ops) if op.is_collective]
    for flight in flights:
        op = run.program.ops[flight]
        class_groups = run.network.class_groups[op.axes]
        members = class_groups.members[class_groups.of_class[0]]
        begin, end = int(run.start[0, flight]), int(run.end[0, flight])
        edges = {begin, end}
        for number in members:
            for each in flights:
                edges |= {int(run.start[number, each]), int(run.end[number, each])}
        cuts = sorted(edge for edge in edges if begin <= edge <= end)
        done = 0.0
        for one, other in pairwise(cuts):
            lasts = max(_lasts(run, flight, number, one) for number in members)
            done += (other - one) / lasts
        least = run.network.ticks(op)[0]
        assert end - begin >= least
        assert done == pytest.approx(1.0, abs=2 * len(cuts) / max(least, 1)) or end == begin


def _lasts(run: SimulatedOps, flight: int, number: int, now: int) -> int:
    flying: list[tuple[str, ...]] = []
    for index, op in enumerate(run.program.ops):
        if op.is_collective and run.start[number, index] <= now < run.end[number, index]:
            insort(flying, op.axes)
    return run.network.ticks(run.program.ops[flight], tuple(flying))[number]


@settings(deadline=None, max_examples=30, derandomize=True)
@given(**WORLDS)
def test_a_shared_link_never_makes_anything_end_sooner(
    plan: str, overlap: str, bytes_per_s: float
) -> None:
    shared = SmallFabric(bytes_per_s=bytes_per_s)
    run = played(plan, overlap, shared)
    alone = played(plan, overlap, replace(shared, axes_share=False))
    numbers = [alone.network.groups.classes[rank] for rank in run.network.ranks]
    assert (run.end >= alone.end[numbers]).all()
    for stream in {op.stream for op in run.program.ops}:
        own = [index for index, op in enumerate(run.program.ops) if op.stream == stream]
        busy = (alone.end - alone.start)[:, own].sum(axis=1).max()
        assert run.end.max() >= busy


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 4 * MB), min_size=2, max_size=3),
    grown=st.integers(0, 2),
    by=st.integers(0, MB),
)
def test_more_work_on_one_axis_lets_no_other_end_sooner(
    sizes: list[int], grown: int, by: int
) -> None:
    def ends(sizes: list[int]) -> list[float]:
        named = zip(("tp", "y", "z"), sizes, strict=False)
        ops = [reduce(axis, axis, axis, nbytes, axis) for axis, nbytes in named]
        return [end for _, end in spans(*ops, plan="tp=2,y=2,z=2").values()]

    more = [n + by if index == grown else n for index, n in enumerate(sizes)]
    assert all(a >= b - 4e-12 for a, b in zip(ends(more), ends(sizes), strict=True))


@settings(deadline=None, max_examples=25, derandomize=True)
@given(**WORLDS, seed=st.randoms(use_true_random=False))
def test_rank_classes_have_the_timing_of_every_rank_however_ranks_are_placed(
    plan: str, overlap: str, bytes_per_s: float, seed: Random
) -> None:
    ranks = plan_of(plan).grid.ranks
    nodes = [rank // 4 for rank in range(ranks)]
    seed.shuffle(nodes)
    fabric = SmallFabric(bytes_per_s=bytes_per_s, node_of=tuple(nodes))
    program = lowered(WIDE, f"{plan},overlap={overlap}", 2)
    folded = simulate_unfolded(program, SmallCosts(), fabric)
    every = simulate_unfolded(program, SmallCosts(), fabric, unfold=True)
    assert (folded.start[folded.network.groups.classes] == every.start).all()
    assert (folded.end[folded.network.groups.classes] == every.end).all()


@settings(deadline=None, max_examples=5, derandomize=True)
@given(order=st.permutations(range(4)))
def test_renumbering_like_nodes_changes_nothing(order: list[int]) -> None:
    machine = load_machine("frontier")
    gpt, plan = replace(find_model("gpt-5b"), layers=4), plan_of("tp=4,y=2,z=2,dp=2", 2)
    nodes = [order[rank // 8] for rank in range(32)]
    placement = Placement(np.array(nodes, dtype=np.int64), np.arange(32, dtype=np.int64) % 8)
    assert predict(gpt, plan, machine, placement=placement) == predict(gpt, plan, machine)
