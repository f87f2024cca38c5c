"""Placements: policies, their text form, Slurm host lists, and how far an axis reaches."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.messages import assert_names, names
from topologies.collectives.collective_time import with_algorithm
from topologies.errors import MachineError, TooFewDevicesError
from topologies.files.hostlist import node_numbers
from topologies.hardware.interconnect import FatTree
from topologies.machine_files import load_machine, with_settings
from topologies.placement import (
    ASKED_FOR,
    Placement,
    contiguous,
    random,
    scattered,
    scheduler,
    with_room,
)
from topologies.placement_names import parse_placement
from topologies.routing.locality import Locality, locality
from topologies.routing.wiring import wiring

FRONTIER = load_machine("frontier")


def groups_of(placement: Placement) -> list[int]:
    """Nodes in each dragonfly group that the placement uses, most first."""
    nodes = np.unique(placement.node)
    counts = np.bincount(wiring(FRONTIER.network).group[nodes])
    return sorted(counts[counts > 0].tolist(), reverse=True)


def test_scattered_nodes_are_shared_evenly_by_the_groups() -> None:
    assert groups_of(scattered(FRONTIER, 512, groups=30)) == [3] * 4 + [2] * 26


def test_a_full_group_leaves_its_share_to_the_others() -> None:
    lumi = load_machine("lumi")
    placement = scattered(lumi, lumi.devices, groups=24)
    assert len(np.unique(placement.node)) == 2978


def test_a_64_node_job_gets_the_median_of_the_groups_that_such_jobs_got() -> None:
    assert len(groups_of(scheduler(FRONTIER, 512))) == 30


def test_large_jobs_fill_their_groups() -> None:
    assert groups_of(scheduler(FRONTIER, 32768)) == [128] * 32


def test_small_jobs_get_few_groups_and_one_node_one() -> None:
    assert len(groups_of(scheduler(FRONTIER, 8))) == 1
    assert len(groups_of(scheduler(FRONTIER, 32))) <= 3


def test_a_scheduler_of_a_fat_tree_packs() -> None:
    dgx = load_machine("dgx-h100")
    assert scheduler(dgx, 64) == contiguous(dgx, 64)


def test_the_same_seed_gives_the_same_nodes_in_ascending_order() -> None:
    assert random(FRONTIER, 512, seed=1) == random(FRONTIER, 512, seed=1)
    assert random(FRONTIER, 512, seed=1) != random(FRONTIER, 512, seed=2)
    assert (np.diff(random(FRONTIER, 512, seed=1).node) >= 0).all()
    shuffled = random(FRONTIER, 512, seed=1, order="shuffled")
    assert (np.diff(shuffled.node) < 0).any()
    assert parse_placement("random:seed=1:order=shuffled", FRONTIER, 512) == shuffled


def test_a_scheduler_gives_other_nodes_with_another_seed() -> None:
    given = [parse_placement(f"scheduler:seed={seed}", FRONTIER, 512) for seed in (1, 1, 2)]
    assert given[0] == given[1] != given[2]
    assert parse_placement("scheduler", FRONTIER, 512) not in given


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("frontier00007", [7]),
        ("frontier[00001-00003,00100]", [1, 2, 3, 100]),
        ("nid[008-010],nid007,nid[1,3]", [8, 9, 10, 7, 1, 3]),
    ],
)
def test_host_lists_name_nodes_by_their_digits(text: str, numbers: list[int]) -> None:
    assert node_numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("frontier[1-3", ("frontier[1-3",)),
        ("rack[1-2]node[1-4]", ("rack[1-2]node[1-4]", "frontier[00001-00064,00100]")),
        ("nid[3-1]", ("3-1", "nid[3-1]")),
        ("nid[1-3],nid2", ("nid[1-3],nid2", "2")),
        ("nid[a-b]", ("a-b", "nid[a-b]")),
        ("login", ("login", "frontier[00001-00064,00100]")),
        ("x1000c[1-2]", ("x1000c[1-2]", "frontier[00001-00064,00100]")),
        ("nid[1-2]s", ("nid[1-2]s", "frontier[00001-00064,00100]")),
    ],
)  # fmt: skip
def test_host_lists_of_another_form_are_refused_by_name(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(MachineError) as error:
        node_numbers(text)
    assert_names(str(error.value), *named)


def test_texts_name_the_policies() -> None:
    def parsed(text: str) -> Placement:
        return parse_placement(text, FRONTIER, 16)

    assert parsed("contiguous") == contiguous(FRONTIER, 16)
    assert parsed("scattered:2:seed=7") == scattered(FRONTIER, 16, 2, seed=7)
    assert parsed("scattered:2") == scattered(FRONTIER, 16, 2)
    assert parsed("random:seed=1:order=shuffled") == random(FRONTIER, 16, 1, "shuffled")
    assert parsed("scheduler:seed=3") == scheduler(FRONTIER, 16, 3)
    assert parsed("hosts:frontier[00005,00002]").node.tolist() == [5] * 8 + [2] * 8


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("contigous", ("contigous", "contiguous")),
        ("scattered", ("scattered", "scattered:30")),
        ("scattered:many", ("scattered:many", "scattered:30")),
        ("hosts", ("hosts", "hosts:NAME[00001-00064]")),
        ("random:sed=1", ("sed=1", "seed=…", "order=…")),
        ("random:seed=x", ("seed=x",)),
        ("random:order=up", ("up", "sorted", "shuffled")),
        ("contiguous:seed=1", ("seed=1",)),
        ("scattered:3", ("scattered:3", "2", "77", "frontier")),
        ("hosts:frontier[9854-9856]", ("9856", "frontier", "0", "9855")),
    ],
)
def test_unknown_placements_are_refused(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(MachineError) as error:
        parse_placement(text, FRONTIER, 16)
    assert_names(str(error.value), *named)


def test_too_few_hosts_or_nodes_in_the_groups_are_refused() -> None:
    with pytest.raises(TooFewDevicesError, check=names("16", "1", "frontier")):
        parse_placement("hosts:frontier1", FRONTIER, 16)
    with pytest.raises(MachineError, check=names("scattered:2", "frontier", "256")):
        scattered(FRONTIER, 8 * 300, groups=2)


@pytest.mark.parametrize(
    ("inner", "size", "expected", "named"),
    [
        (1, 8, Locality(True, True, True, 1, 1, 1), ("node",)),
        (8, 16, Locality(False, True, True, 16, 1, 1), ("16", "switch")),
        (1, 16, Locality(False, False, True, 2, 4, 1), ("2", "group")),
        (1024, 2, Locality(False, False, False, 2, 2, 2), ("2", "groups")),
    ],
)
def test_the_reach_of_an_axis(
    inner: int, size: int, expected: Locality, named: tuple[str, ...]
) -> None:
    grid = np.arange(2048).reshape(-1, size, inner)
    members = grid.transpose(0, 2, 1).reshape(-1, size)
    found = locality(FRONTIER, contiguous(FRONTIER, 2048), members)
    assert found == expected
    assert_names(found.words, *named)


@pytest.mark.parametrize(
    ("inner", "size", "whole"), [(1, 64, 64), (4, 4, 64), (4, 8, 64), (1, 36, 0), (1, 128, 0)]
)
def test_groups_that_a_whole_number_of_devices_would_keep_in_a_node(
    inner: int, size: int, whole: int
) -> None:
    """Of 72 devices four times 16 ranks side by side, or twice 32, leave 8; twice 36 none."""
    machine = load_machine("gb200-nvl72")
    members = np.arange(2304).reshape(-1, size, inner).transpose(0, 2, 1).reshape(-1, size)
    found = locality(machine, contiguous(machine, 2304), members)
    assert found.whole == whole
    assert (str(whole) in re.findall(r"\d+", found.words)) == bool(whole)


def test_sixteen_nodes_of_frontier_share_four_switches() -> None:
    wires = wiring(FRONTIER.network)
    assert wires.switches == 77 * 32
    assert np.unique(wires.switch[:16]).tolist() == [0, 1, 2, 3]
    assert wires.switch[16].tolist() == [4, 5, 6, 7]
    assert wires.switch[128].tolist() == [32, 33, 34, 35]
    assert np.bincount(wires.switch.reshape(-1)).tolist() == [16] * wires.switches


def test_other_jobs_cannot_take_everything() -> None:
    with pytest.raises(MachineError, check=names("interconnect.background", "1", "0")):
        with_settings(FRONTIER, {"interconnect.background": "1"})


def test_a_fat_tree_of_any_size_has_the_units_that_ranks_need() -> None:
    machine = load_machine("dgx-a100")  # 7 units of 20 nodes of 8 devices, 20 spines
    larger = with_room(machine, 3072)
    tree = larger.interconnect
    assert isinstance(tree, FatTree)
    assert (larger.devices, larger.nodes, tree.units, tree.spines) == (3072, 384, 20, 58)
    facts = {fact.key: fact for fact in larger.entries}
    assert (facts["nodes"].value, facts["interconnect.units"].value) == (384, 20)
    assert facts["nodes"].source == ASKED_FOR
    assert contiguous(larger, 3072).node[-1] == 383


@pytest.mark.parametrize("ranks", [1, 1119, 1120])
def test_a_machine_that_has_the_devices_stays_as_it_is(ranks: int) -> None:
    machine = load_machine("dgx-a100")
    assert with_room(machine, ranks) is machine


def test_a_larger_machine_keeps_what_was_changed_of_it() -> None:
    machine = with_algorithm(load_machine("dgx-h100"), "all_reduce", "tree")
    assert with_room(machine, 2048).software == machine.software
    assert with_room(with_room(machine, 2048), 4096) == with_room(machine, 4096)


@pytest.mark.parametrize("name", ["frontier", "host", "4x8xH100,8xNDR"])
def test_a_machine_of_a_fixed_size_has_no_more_devices(name: str) -> None:
    machine = load_machine(name)
    with pytest.raises(TooFewDevicesError, check=names(f"{machine.devices + 1}")):
        with_room(machine, machine.devices + 1)


def test_ten_million_devices_are_the_most() -> None:
    with pytest.raises(MachineError, check=names("10,000,000")):
        with_room(load_machine("dgx-h100"), 10_000_001)


def test_sizes_are_fixed_or_any() -> None:
    with pytest.raises(MachineError, check=names("interconnect.size", "all", "fixed")):
        with_settings("dgx-h100", {"interconnect.size": "all"})
