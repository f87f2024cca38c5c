"""All-to-alls of a program: how long they take, alone and beside other collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import core
from simulator.engine.engines import ENGINES, using
from simulator.engine.simulate import Prices, rank_tasks, simulate_tasks, simulate_timeline
from simulator.explain.bottleneck_link import SORTS, limiting_link
from simulator.ranks.classes import classes_of, until_consistent
from simulator.ranks.fabric import MachineFabric
from tests.blocks import BLOCK
from tests.simulator.worlds import SmallCosts, by_hand, compute, plan_of, standing
from topologies.collectives.collective_time import collective_seconds
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import contiguous
from workload.op import COMPUTE, Op
from workload.program import Program
from workload.timeline import Timeline
from workload.transport import ALL_TO_ALL, PLAIN

FRONTIER = load_machine("frontier")
BYTES = 1 << 24
MACHINES = [
    with_settings(name, {"software.algorithm.all_to_all": algorithm})
    for name in ("frontier", "perlmutter", "dgx-h100")
    for algorithm in ("pairwise", "hierarchical")
]


def exchange(name: str, axis: str, nbytes: int = BYTES, stream: str = COMPUTE) -> Op:
    operands = ("sent",), (name,)
    return standing(Op(name, "all_to_all", *operands, BLOCK, stream, (axis,), nbytes))


def gather(name: str, axis: str, nbytes: int = BYTES, stream: str = COMPUTE) -> Op:
    return replace(exchange(name, axis, nbytes, stream), kind="all_gather")


def played(program: Program, ranks: int) -> Timeline:
    return simulate_timeline([program], SmallCosts(), MachineFabric(FRONTIER, ranks))


def seconds_of(timeline: Timeline, name: str) -> float:
    (span,) = {(s.start_s, s.end_s) for s in timeline.spans if s.op.name == name}
    return span[1] - span[0]


def test_an_all_to_all_takes_its_time_on_the_machine_after_what_it_reads() -> None:
    program = by_hand("dp=16", compute("work", "", "sent"), exchange("got", "dp"))
    found = played(program, 16)
    work, got = (next(span for span in found.spans if span.op.name == n) for n in ("work", "got"))
    assert got.start_s == pytest.approx(work.end_s)
    (ring,), _ = MachineFabric(FRONTIER, 16).rings([program.plan.grid.groups("dp")], [True])[0]
    own = collective_seconds(FRONTIER, "all_to_all", BYTES, ring)
    assert got.end_s - got.start_s == pytest.approx(own, rel=1e-6)
    assert program.comm_bytes == {"dp": BYTES}


def test_a_ring_and_an_exchange_over_the_same_axes_each_have_their_own_rates() -> None:
    # Eight GCDs of a node: a ring of them moves 200 GB/s, their pairs 87.5 GB/s.
    program = by_hand("dp=8", gather("ring", "dp"), exchange("pairs", "dp"))
    found = played(program, 8)
    fabric = MachineFabric(FRONTIER, 8)
    groups = program.plan.grid.groups("dp")
    for name, pairs, rate in (("ring", False, 200e9), ("pairs", True, 87.5e9)):
        (ring,), _ = fabric.rings([groups], [pairs])[0]
        assert ring.bytes_per_s == rate
        kind = "all_to_all" if pairs else "all_gather"
        own = fabric.seconds(PLAIN[kind], BYTES, ring)
        assert seconds_of(found, name) == pytest.approx(own, rel=1e-6)


def test_an_exchange_beside_a_ring_of_other_axes_leaves_each_half_of_the_nics() -> None:
    both = by_hand(
        "z=16,dp=8",
        gather("ring", "z", stream="z"),
        exchange("pairs", "dp", stream="dp"),
        compute("end", "ring pairs", "out"),
    )
    alone = by_hand("z=16,dp=8", exchange("pairs", "dp", stream="dp"))
    together, single = (seconds_of(played(each, 128), "pairs") for each in (both, alone))
    assert single < together < 2.2 * single


@pytest.mark.skipif(not core.is_built(), reason="built without a C compiler")
@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["z", "dp", "tp"]), st.booleans(), st.integers(16, 26), st.booleans()
        ),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from(["tp=2,z=8,dp=2", "tp=8,z=2,dp=2", "z=4,dp=8"]),
)
def test_both_engines_agree_on_exchanges_beside_rings(
    drawn: list[tuple[str, bool, int, bool]], plan: str
) -> None:
    ops: list[Op] = [compute("work", "", "sent")]
    for number, (axis, pairs, power, blocks) in enumerate(drawn):
        make, stream = exchange if pairs else gather, COMPUTE if blocks else axis
        ops.append(make(f"c{number}", axis, 1 << power, stream))
    ops.append(compute("end", " ".join(op.name for op in ops[1:]), "out"))
    programs, found = [by_hand(plan, *ops)], []
    fabric = MachineFabric(FRONTIER, 32)
    for engine in ENGINES:
        with using(engine):
            found.append(
                until_consistent(
                    lambda contended: classes_of(programs, fabric, contended=contended),
                    lambda network: simulate_tasks(
                        rank_tasks(programs, network), Prices(SmallCosts(), network)
                    ),
                )
            )
    assert found[0] == found[1]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(MACHINES),
    st.sampled_from([2, 4, 6, 8, 12, 16, 24, 48]),
    st.integers(0, 99),
    st.integers(0, 32),
)
def test_no_groups_all_to_all_is_faster_than_the_ideal(
    machine: Machine, size: int, seed: int, power: int
) -> None:
    ranks = np.random.default_rng(seed).permutation(48)
    fabric = MachineFabric(machine, 48)
    groups = ranks.reshape(-1, size) if seed % 3 else np.arange(48).reshape(-1, size)
    times = [
        fabric.seconds(ALL_TO_ALL, 1 << power, ring)
        for ring in fabric.rings([groups], [True])[0][0]
    ]
    ideal = [
        fabric.seconds(ALL_TO_ALL, 1 << power, r)
        for r in fabric.fastest(fabric.ideal(size, pairs=True))
    ]
    assert min(ideal) <= min(times) * (1 + 1e-9)


def test_a_wide_exchange_is_held_back_by_the_links_between_switches() -> None:
    grid = plan_of("z=8192").grid
    placement = contiguous(FRONTIER, 8192)
    ring, pairs = (limiting_link(FRONTIER, placement, grid, "z", pairs=p) for p in (False, True))
    nics, switches = SORTS["node.nics.bandwidth"], SORTS["interconnect.link_bandwidth"]
    assert (ring, pairs) == (nics, switches)
