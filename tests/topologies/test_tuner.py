"""What NCCL's and RCCL's tuners pick, by hand from their constants, and that it costs its curve."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest

import topologies
from tests.messages import assert_names
from topologies.collectives.benchmark import bench
from topologies.collectives.collective_time import (
    algorithm_seconds,
    collective_seconds,
    nominal_bytes_per_s,
    picked,
    with_algorithm,
)
from topologies.collectives.nccl_tuner import NONE, Shape, tuner_seconds
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.routing.rings import Ring
from topologies.shipped import machine_names, variant_names

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
FRONTIER = with_settings("frontier", {"software.tuner": "rccl-mi250x"})
PERLMUTTER = load_machine("perlmutter")
H100 = load_machine("dgx-h100")
AMPERE = "nccl-ampere-slingshot"
FOUR_NODES = Shape(ranks=16, nodes=4, bytes_per_s=100e9)


def test_a_small_ring_on_four_nodes_takes_its_steps_and_hops_in_protocol_ll() -> None:
    # 30 steps, of which 8 leave a node: 6.6 + 22 * 2 (posting to the NIC) + 8 * 2.7 us; 1 KiB at
    # 19 GB/s (the cap of LL) times 16/30.
    expected = 6.6e-6 + 22 * 2e-6 + 8 * 2.7e-6 + KIB / (19e9 * 16 / 30)
    assert tuner_seconds(AMPERE, KIB, FOUR_NODES)["ring"] == pytest.approx(expected)


def test_a_small_tree_on_four_nodes_goes_up_and_down_once() -> None:
    # 2 * (3 steps of 0.6 + 2 levels of 5 us); 1 KiB at 0.9 (the
    # correction of this size) of the cap of 19 GB/s, half of it each way.
    expected = 6.8e-6 + 2 * (3 * 0.6e-6 + 2 * 5e-6) + KIB / (19e9 * 0.9 * 0.5)
    assert tuner_seconds(AMPERE, KIB, FOUR_NODES)["tree"] == pytest.approx(expected)


def test_a_large_ring_has_a_plateau_in_protocol_simple() -> None:
    # Steps of 6 us (three posts), hops of 14 us, 1.4 times all of it; 100 GB/s times 16/30.
    expected = 1.4 * (8.4e-6 + 22 * 6e-6 + 8 * 14e-6) + GIB / (100e9 * 16 / 30)
    assert tuner_seconds(AMPERE, GIB, FOUR_NODES)["ring"] == pytest.approx(expected)


def test_a_tree_on_two_nodes_counts_with_twice_the_rate_of_the_nics() -> None:
    two, four = (Shape(4 * n, n, 100e9) for n in (2, 4))
    slope = [
        GIB / (tuner_seconds(AMPERE, 2 * GIB, s)["tree"] - tuner_seconds(AMPERE, GIB, s)["tree"])
        for s in (two, four)
    ]
    assert slope == pytest.approx([92e9, 46e9])


@pytest.mark.parametrize(
    ("tuner", "links", "expected"),
    [
        # 0.736 of the links, half of it each way; twice the NICs' 0.92 where the links allow it.
        ("nccl-ampere", 300e9, 0.736 * 300e9 / 2),
        ("nccl-ampere", 900e9, 1.84 * 200e9 / 2),
    ],
)
def test_a_tree_on_two_nodes_counts_with_no_more_than_the_links_inside_them(
    tuner: str, links: float, expected: float
) -> None:
    shape = Shape(16, 2, 200e9, links)
    first, second = (tuner_seconds(tuner, size, shape)["tree"] for size in (4 * GIB, 8 * GIB))
    assert 4 * GIB / (second - first) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("machine", "devices", "algorithm", "bus"),
    [
        # Sources: 480 in a node and some 470 on two, 366 (NVIDIA/nccl-tests issue 309), 192
        # (NVIDIA/nccl issue 812); a tree on two nodes of A100 reaches 192 to 235.
        ("dgx-h100", 16, "nvls", 470e9),
        ("dgx-h100", 32, "ring", 366e9),
        ("dgx-a100", 16, "tree", 214e9),
        ("dgx-a100", 32, "ring", 192e9),
    ],
)
def test_large_all_reduces_on_a_few_nodes_reach_what_was_measured(
    machine: str, devices: int, algorithm: str, bus: float
) -> None:
    (line,) = bench(load_machine(machine), "all_reduce", [16 * GIB], [devices])
    assert line.algorithm == algorithm
    assert line.busbw_bytes_per_s == pytest.approx(bus, rel=0.1)


def test_rccl_corrects_its_bandwidths_by_size() -> None:
    # The ring's share at 64 MiB in protocol Simple is 1. Of its 2,046 steps 256 leave a node, with
    # 19.8 us each, and the others take 6 us.
    shape = Shape(ranks=1024, nodes=128, bytes_per_s=100e9)
    expected = 17e-6 + (2046 - 256) * 6e-6 + 256 * 19.8e-6 + 64 * MIB / (100e9 * 1024 / 2046)
    assert tuner_seconds("rccl-mi250x", 64 * MIB, shape)["ring"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("machine", "ring", "size", "expected"),
    [
        (PERLMUTTER, Ring(16, 4, 4, 100e9), MIB, "tree"),
        (PERLMUTTER, Ring(16, 4, 4, 100e9), GIB, "ring"),
        (PERLMUTTER, Ring(2048, 512, 4, 100e9), GIB, "tree"),
        (FRONTIER, Ring(2048, 256, 8, 100e9), 64 * MIB, "tree"),
        (FRONTIER, Ring(8, 1, 8, 200e9), MIB, "tree"),
        (FRONTIER, Ring(8, 1, 8, 200e9), 256 * MIB, "ring"),
        # The table's own note: NVLS from 2 MiB.
        (H100, Ring(8, 1, 8, 450e9), MIB, "ring"),
        (H100, Ring(8, 1, 8, 450e9), 2 * MIB, "nvls"),
    ],
)
def test_the_tuners_pick_as_their_constants_say(
    machine: Machine, ring: Ring, size: float, expected: str
) -> None:
    times = algorithm_seconds(machine, "all_reduce", size, ring)
    assert picked(machine, "all_reduce", size, ring, times) == expected


def test_what_the_tuner_picks_takes_the_time_of_its_curve_even_if_another_is_faster() -> None:
    ring = Ring(2048, 256, 8, 100e9)
    auto = collective_seconds(FRONTIER, "all_reduce", GIB, ring)
    tree = with_algorithm(FRONTIER, "all_reduce", "tree")
    cheapest = with_algorithm(FRONTIER, "all_reduce", "cheapest")
    assert auto == collective_seconds(tree, "all_reduce", GIB, ring)
    assert collective_seconds(cheapest, "all_reduce", GIB, ring) < auto / 2
    assert collective_seconds(load_machine("frontier"), "all_reduce", GIB, ring) < auto / 2


def test_rivals_on_the_links_do_not_change_what_the_tuner_picks() -> None:
    ring = Ring(16, 4, 4, 100e9)
    alone, crowded = ring, dataclasses.replace(ring, bytes_per_s=12.5e9)
    assert nominal_bytes_per_s(PERLMUTTER, alone) == nominal_bytes_per_s(PERLMUTTER, crowded)
    assert nominal_bytes_per_s(PERLMUTTER, Ring(4, 4, 1, 25e9)) == 25e9
    assert nominal_bytes_per_s(PERLMUTTER, Ring(4, 1, 4, 300e9)) == 300e9


def test_an_algorithm_without_a_curve_is_never_picked() -> None:
    software = dataclasses.replace(PERLMUTTER.software, tree=None)
    machine = dataclasses.replace(PERLMUTTER, software=software)
    (line,) = bench(machine, "all_reduce", [KIB], [64])
    assert line.algorithm == "ring"


def test_broadcasts_take_rings_where_the_library_has_a_tuner() -> None:
    ring = Ring(2048, 512, 4, 100e9)
    times = algorithm_seconds(PERLMUTTER, "broadcast", KIB, ring)
    assert min(times, key=lambda name: times[name]) == "tree"
    assert picked(PERLMUTTER, "broadcast", KIB, ring, times) == "ring"


def test_every_shipped_variants_tuner_knows_every_size() -> None:
    for name in machine_names():
        for variant in variant_names(name) or [""]:
            tuner = load_machine(f"{name}:{variant}" if variant else name).software.tuner
            for size in [] if tuner == NONE else [1.0, 2.0**6, 2.0**28, 2.0**40]:
                for nodes in (1, 2, 3, 1000):
                    times = tuner_seconds(tuner, size, Shape(4 * nodes, nodes, 1e11))
                    assert {"ring", "tree"} <= set(times)
                    assert all(math.isfinite(time) and time > 0 for time in times.values())


def test_an_unknown_tuner_is_refused_by_name() -> None:
    with pytest.raises(MachineError) as error:
        with_settings(PERLMUTTER, {"software.tuner": "nccl-hoper"})
    assert_names(str(error.value), "software.tuner", "nccl-hoper", "none", "nccl-ampere")


def test_every_tuners_constants_have_a_source() -> None:
    text = (Path(topologies.__file__).parent / "tuners.toml").read_text(encoding="utf-8")
    for name, table in tomllib.loads(text).items():
        assert "tuning.cc" in table["source"], name
        assert "channels" not in table or table["channels"]["source"], name
