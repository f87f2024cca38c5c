"""Collective times follow the measured curves, and measured tables go before them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import assert_names, names
from topologies.collectives.collective_time import (
    Kind,
    Reached,
    algorithm_seconds,
    collective_seconds,
    with_algorithm,
)
from topologies.errors import MachineError
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.hardware.software import Curve, Software, Staged
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.routing.rings import Ring

MIB = 2.0**20
FRONTIER = load_machine("frontier")
PERLMUTTER = load_machine("perlmutter")
KINDS: tuple[Kind, ...] = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "all_to_all",
    "send_recv",
)


def whole_nodes(machine: Machine, ranks: int) -> Ring:
    """The ring over all devices of full nodes."""
    per_node = machine.devices_per_node
    nodes = ranks // per_node
    within = {"frontier": 200e9, "perlmutter": 300e9}[machine.name]
    return Ring(ranks, nodes, per_node, 100e9 if nodes > 1 else within)


# Measured milliseconds, axonn-ai/sc2025-pccl-reproducer (branch experimental, data/).
MEASURED: list[tuple[Machine, Kind, int, int, float]] = [
    (FRONTIER, "all_gather", 8, 128, 1.33),
    (FRONTIER, "all_gather", 8, 1024, 10.5),
    (FRONTIER, "all_gather", 16, 512, 7.09),
    (FRONTIER, "all_gather", 64, 512, 7.42),
    (FRONTIER, "all_gather", 256, 2, 2.25),
    (FRONTIER, "all_gather", 256, 32, 7.62),
    (FRONTIER, "all_gather", 256, 1024, 15.1),
    (FRONTIER, "reduce_scatter", 8, 512, 6.26),
    (FRONTIER, "reduce_scatter", 64, 128, 2.24),
    (FRONTIER, "reduce_scatter", 256, 64, 6.95),
    (PERLMUTTER, "all_gather", 16, 1024, 16.2),
    (PERLMUTTER, "all_gather", 64, 64, 1.63),
    (PERLMUTTER, "all_gather", 256, 1, 1.67),
    (PERLMUTTER, "all_gather", 256, 256, 6.74),
]


@pytest.mark.parametrize(("machine", "kind", "ranks", "mib", "measured_ms"), MEASURED)
def test_the_curve_meets_measured_times_within_15_percent(
    machine: Machine, kind: Kind, ranks: int, mib: int, measured_ms: float
) -> None:
    seconds = collective_seconds(machine, kind, mib * MIB, whole_nodes(machine, ranks))
    assert seconds * 1e3 == pytest.approx(measured_ms, rel=0.15)


def test_a_group_of_one_communicates_for_free() -> None:
    assert collective_seconds(FRONTIER, "all_reduce", MIB, Ring(1, 1, 1, math.inf)) == 0


def test_a_small_gather_in_a_node_is_its_launch() -> None:
    curve = FRONTIER.software.all_gather
    assert curve is not None
    seconds = collective_seconds(FRONTIER, "all_gather", 0, whole_nodes(FRONTIER, 8))
    assert seconds == pytest.approx(curve.launch_s)


def test_a_small_all_reduce_takes_the_tree_and_a_large_one_the_ring() -> None:
    small, large = whole_nodes(FRONTIER, 8000), whole_nodes(FRONTIER, 16)
    # 37 us, and up and down log2(1000) levels of 32.2 us.
    expected = 37e-6 + 2 * math.log2(1000) * 32.2e-6
    assert collective_seconds(FRONTIER, "all_reduce", 0, small) == pytest.approx(expected)
    times = algorithm_seconds(FRONTIER, "all_reduce", 512 * MIB, large)
    assert times["ring"] < 0.2 * times["tree"]


def test_an_all_reduce_ring_is_both_halves_with_one_launch() -> None:
    ring = whole_nodes(FRONTIER, 16)
    gather, scatter = FRONTIER.software.all_gather, FRONTIER.software.reduce_scatter
    assert gather is not None
    assert scatter is not None
    halves = sum(
        collective_seconds(FRONTIER, kind, 512 * MIB, ring)
        for kind in ("all_gather", "reduce_scatter")
    )
    both = collective_seconds(FRONTIER, "all_reduce", 512 * MIB, ring)
    assert both == pytest.approx(halves - min(gather.launch_s, scatter.launch_s))


@given(payload=st.floats(1, 1e10), nodes=st.integers(1, 512))
def test_cheapest_is_never_slower_than_what_the_library_picks(payload: float, nodes: int) -> None:
    ring = whole_nodes(FRONTIER, 8 * nodes)
    machine = with_algorithm(FRONTIER, "all_reduce", "cheapest")
    cheapest = collective_seconds(machine, "all_reduce", payload, ring)
    for name in ("auto", "ring", "tree"):
        chosen = with_algorithm(FRONTIER, "all_reduce", name)
        assert cheapest <= collective_seconds(chosen, "all_reduce", payload, ring)


def test_a_setting_replaces_the_algorithm_of_a_collective() -> None:
    by_setting = with_settings(FRONTIER, {"software.all_reduce": "hierarchical"})
    ring = whole_nodes(FRONTIER, 2048)
    times = algorithm_seconds(by_setting, "all_reduce", 64 * MIB, ring)
    assert list(times) == ["hierarchical"]
    assert times["hierarchical"] < 0.5 * collective_seconds(FRONTIER, "all_reduce", 64 * MIB, ring)


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(MachineError) as error:
        with_settings(FRONTIER, {"software.all_reduce": "butterfly"})
    assert_names(
        str(error.value),
        "software.all_reduce",
        "butterfly",
        "all_reduce",
        "cheapest",
        "ring",
        "tree",
        "recursive",
        "nvls",
    )


def test_a_library_without_the_chosen_algorithm_says_so() -> None:
    machine = with_algorithm(PERLMUTTER, "all_reduce", "nvls")
    with pytest.raises(MachineError, check=names("perlmutter", "software.nvls")):
        collective_seconds(machine, "all_reduce", MIB, whole_nodes(PERLMUTTER, 16))


def test_eager_messages_stall_in_mid_sizes_and_nowhere_else() -> None:
    eager = load_machine("frontier:rccl-default")
    ring = whole_nodes(FRONTIER, 64)
    slower = [
        collective_seconds(eager, "all_gather", 64 * chunk, ring)
        / collective_seconds(FRONTIER, "all_gather", 64 * chunk, ring)
        for chunk in (2.0**15, 2.0**17, 2.0**20)
    ]
    assert slower[1] > 10
    assert max(slower[0], slower[2]) < 2.5


def test_80_mb_on_8000_gcds_take_the_measured_56_ms() -> None:
    seconds = collective_seconds(FRONTIER, "all_reduce", 80e6, whole_nodes(FRONTIER, 8000))
    assert seconds == pytest.approx(56e-3, rel=0.05)


@given(
    kind=st.sampled_from(KINDS),
    machine=st.sampled_from([FRONTIER, PERLMUTTER]),
    nodes=st.integers(1, 512),
    payload=st.floats(1, 1e10),
    factor=st.floats(1, 100),
)
def test_more_bytes_never_take_less_time_unless_a_tuner_changes_its_pick(
    kind: Kind, machine: Machine, nodes: int, payload: float, factor: float
) -> None:
    machine = with_algorithm(machine, kind, "cheapest")
    ring = whole_nodes(machine, nodes * machine.devices_per_node)
    less = collective_seconds(machine, kind, payload, ring)
    assert collective_seconds(machine, kind, payload * factor, ring) >= less * (1 - 1e-12)


@given(kind=st.sampled_from(KINDS), payload=st.floats(1, 1e10), factor=st.floats(1, 10))
def test_a_faster_ring_never_takes_longer(kind: Kind, payload: float, factor: float) -> None:
    slow = whole_nodes(FRONTIER, 64)
    fast = dataclasses.replace(slow, bytes_per_s=slow.bytes_per_s * factor)
    seconds = collective_seconds(FRONTIER, kind, payload, slow)
    assert collective_seconds(FRONTIER, kind, payload, fast) <= seconds


ROWS = ((4.0, 1024.0, 1e-5), (4.0, 4096.0, 4e-5), (2.0, 1024.0, 5e-6))
PROFILED = dataclasses.replace(
    FRONTIER,
    profile=Profile(collectives={"all_gather": MeasuredTable(("ranks", "bytes", "seconds"), ROWS)}),
)


@pytest.mark.parametrize(
    ("payload", "seconds"),
    [(1.0, 1e-5), (1024.0, 1e-5), (2048.0, 2e-5), (4096.0, 4e-5), (40960.0, 4e-4)],
)
def test_a_measured_table_is_interpolated_and_extrapolated_at_its_last_bandwidth(
    payload: float, seconds: float
) -> None:
    ring = Ring(4, 1, 4, 100e9)
    assert collective_seconds(PROFILED, "all_gather", payload, ring) == pytest.approx(seconds)


def test_a_group_size_that_was_not_measured_is_refused() -> None:
    with pytest.raises(MachineError) as error:
        collective_seconds(PROFILED, "all_gather", MIB, Ring(8, 1, 8, 200e9))
    assert_names(str(error.value), "all_gather", "8", "2", "4")


def test_what_was_neither_measured_nor_modelled_is_refused() -> None:
    software = dataclasses.replace(FRONTIER.software, all_gather=None)
    machine = dataclasses.replace(FRONTIER, software=software)
    with pytest.raises(MachineError, check=names("software.all_gather")):
        collective_seconds(machine, "all_gather", MIB, whole_nodes(machine, 16))


def test_a_reduce_scatter_that_nobody_measured_takes_the_time_of_an_all_gather() -> None:
    software = dataclasses.replace(PERLMUTTER.software, reduce_scatter=None)
    machine = dataclasses.replace(PERLMUTTER, software=software)
    ring = whole_nodes(machine, 64)
    gather, scatter = (collective_seconds(machine, kind, MIB, ring) for kind in KINDS[:2])
    assert gather == scatter


PLAIN = Curve(launch_s=1e-3, efficiency_across=1.0, efficiency_within=1.0, hop_small_s=1e-5)
EIGHT_NODES = Ring(ranks=8, nodes=8, devices_per_node=1, bytes_per_s=1e9)


def seconds_by(kind: Kind, payload: float, algorithm: str, **curves: Any) -> float:
    """Time on eight nodes of one rank each at 1 GB/s, by a library of these curves alone."""
    machine = dataclasses.replace(FRONTIER, software=Software(name="plain", **curves))
    own = with_algorithm(machine, kind, algorithm)
    return collective_seconds(own, kind, payload, EIGHT_NODES)


def test_a_ring_goes_round_twice_for_an_all_reduce_with_a_curve_of_its_own() -> None:
    """Of 8 GB each node passes on 7 GB a round, in 7 hops of 10 us, after one launch of 1 ms."""
    round_s = 7.0 + 7e-5
    once = seconds_by("all_gather", 8e9, "ring", all_gather=PLAIN)
    twice = seconds_by("all_reduce", 8e9, "ring", all_reduce=PLAIN)
    assert [once, twice] == pytest.approx([1e-3 + round_s, 1e-3 + 2 * round_s])


def test_a_tree_goes_down_for_a_broadcast_and_up_first_for_an_all_reduce() -> None:
    """Three levels of hops of 10 us."""
    down, both = (seconds_by(kind, 0, "tree", tree=PLAIN) for kind in ("broadcast", "all_reduce"))
    assert [down, both] == pytest.approx([1e-3 + 3e-5, 1e-3 + 6e-5])


def test_a_hierarchical_collective_without_a_curve_of_its_own_has_the_rings() -> None:
    borrowed = seconds_by("all_gather", 8e9, "hierarchical", all_gather=PLAIN)
    own = seconds_by("all_gather", 8e9, "hierarchical", hierarchical=Staged(all_gather=PLAIN))
    assert borrowed == own
    with pytest.raises(MachineError, check=names("software.recursive.all_gather")):
        seconds_by("all_gather", 8e9, "recursive", all_gather=PLAIN)


def test_only_the_times_that_were_measured_in_groups_of_that_size_count() -> None:
    """Pairs took 5 us for 1 KiB and so take 10 us for 2; groups of four took 40 us for 4."""
    pair = Ring(2, 1, 2, 100e9)
    for payload, seconds in ((1024.0, 5e-6), (2048.0, 1e-5), (4096.0, 2e-5)):
        assert collective_seconds(PROFILED, "all_gather", payload, pair) == pytest.approx(seconds)


def test_a_pairs_ring_reaches_the_share_of_its_kind_of_links() -> None:
    # A package: 1 GB, half of which passes each of the two; 0.645 of 200 GB/s.
    ring = Ring(2, 1, 2, 200e9, pair_links=4)
    software = dataclasses.replace(FRONTIER.software, all_gather=PLAIN)
    machine = dataclasses.replace(FRONTIER, software=software)
    expected = 1e-3 + 0.5e9 / (0.645 * 200e9)
    assert collective_seconds(machine, "all_gather", 1e9, ring) == pytest.approx(expected)
    unknown = dataclasses.replace(ring, pair_links=2)
    assert collective_seconds(machine, "all_gather", 1e9, unknown) == pytest.approx(3.5e-3)


def test_kernels_reach_their_share_also_where_all_to_alls_have_no_curve_of_their_own() -> None:
    """They take that of all-gathers: a large one at half of the rate takes twice as long."""
    software = dataclasses.replace(FRONTIER.software, all_to_all=None)
    machine = dataclasses.replace(FRONTIER, software=software)
    curve = machine.software.all_gather
    assert curve is not None
    slow, ring = Reached(across=curve.efficiency_across / 2), whole_nodes(machine, 64)
    seconds = [
        collective_seconds(machine, "all_to_all", 1e12, ring, reached=each)
        for each in (Reached(), slow)
    ]
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=0.01)


@pytest.mark.parametrize("rows", ["[[4, 1.2]]", "[[4, 0]]", "[[0.5, 0.5]]", "[[4, 0.5], [4, 0.6]]"])
def test_shares_of_pairs_that_are_none_are_refused(rows: str) -> None:
    with pytest.raises(MachineError, check=names("software.pair_share", "[links, share]")):
        with_settings(FRONTIER, {"software.pair_share": rows})


def test_a_broadcast_is_passed_on_slot_by_slot_along_the_ring() -> None:
    """4 MiB at a time, each step as long as one of the library's own ring of that chunk: of 1,023
    steps the last device waits for all, however long the buffer is."""
    curve = Curve(0.0, 1.0, 1.0, hop_small_s=1e-6, step_small_s=1e-6, step_large_s=20e-6)
    software = dataclasses.replace(PERLMUTTER.software, all_reduce=curve)
    machine = dataclasses.replace(PERLMUTTER, software=software)
    ring = Ring(1024, 128, 8, 50e9, 300e9)
    few, many = (collective_seconds(machine, "broadcast", size, ring) for size in (8e6, 64e6))
    assert few > 896 * 19e-6
    assert many - few < 56e6 / 50e9
