"""Machines built from a GPU, its node, its NICs and a fabric."""

from __future__ import annotations

import pytest

from topologies.build import Parts, build_machine, fabrics, family_of, gpus
from topologies.errors import MachineError


@pytest.mark.parametrize("fabric", ["", "none", *fabrics()])
@pytest.mark.parametrize("gpu", [" ".join(gpu["match"]) for gpu in gpus()])
def test_every_gpu_builds_with_every_fabric(gpu: str, fabric: str) -> None:
    machine = build_machine(Parts(gpu, 3, 4, 4, 200e9, fabric, "mine"))
    assert (machine.nodes, machine.devices_per_node, machine.name) == (3, 4, "mine")
    assert machine.node.nics.bytes_per_s == 25e9
    assert all(fact.source for fact in machine.facts())


def test_a_shipped_machine_is_taken_by_its_name_if_it_has_the_nodes() -> None:
    lumi = build_machine(Parts("MI250X GCD-64GB", 64, 8, 4, 200e9, "slingshot", "LUMI-G"))
    assert (lumi.name, lumi.interconnect.kind) == ("lumi", "dragonfly")
    larger = build_machine(Parts("MI250X GCD-64GB", 10**4, 8, 4, 200e9, "slingshot", "LUMI-G"))
    assert (larger.nodes, larger.interconnect.kind) == (10**4, "fat-tree")


def test_nics_beyond_one_for_each_device_add_to_its_rate() -> None:
    machine = build_machine(Parts("H100-SXM5-80GB", 2, 8, 32, 100e9, "efa"))
    assert (machine.node.nics.count, machine.node.nics.bytes_per_s) == (8, 50e9)


def test_an_a800_has_two_thirds_of_the_a100s_links() -> None:
    rates = [
        build_machine(Parts(gpu, 1, 8)).node.device_bytes_per_s for gpu in ("A800", "A100-80GB")
    ]
    assert rates == [200e9, 300e9]


def test_families_are_gpu_generations() -> None:
    names = ("A800-SXM4", "A100-SXM4-40GB", "H200", "GH200-96GB", "MI250X GCD")
    assert [family_of(name) for name in names] == ["a100", "a100", "h100", "h100", "mi250x"]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(MachineError, match='gpu "TPUv4" is not known; known: a100-40'):
        build_machine(Parts("TPUv4", 1))
    with pytest.raises(MachineError, match='fabric "ethernet" is not known; try infiniband'):
        build_machine(Parts("A100", 1, fabric="ethernet"))
