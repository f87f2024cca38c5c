"""Machines built from a GPU, its node, its NICs and a fabric."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many, one_in
from tests.messages import names
from topologies.collectives.benchmark import bench, full_ring
from topologies.collectives.collective_time import collective_seconds
from topologies.errors import MachineError
from topologies.hardware.device_library import OF_DEVICE, family_of, gpu_of, gpus
from topologies.machine_files import build_machine, load_machine
from topologies.parts import Parts, fabrics
from topologies.shipped import machine_names


def test_a_fabric_says_of_one_curve_what_it_says_of_no_other() -> None:
    """On EFA hops of gathers were measured, those of trees were not; a gather on 64 nodes of p5
    took 0.6 GiB over 45 GB/s, and 6.5 GB/s in the network's slower state."""
    size, busy = 0.6 * 2**30, {}
    for fabric in ("efa", "efa-slow"):
        machine = build_machine(Parts("H100-SXM5-80GB", 64, 8, 32, 100e9, fabric))
        tree, gather = machine.software.tree, machine.software.all_gather
        assert tree is not None
        assert gather is not None
        assert tree.hop_large_s == pytest.approx(40e-6)
        assert tree.efficiency_across == gather.efficiency_across == 0.57
        seconds = collective_seconds(
            machine, "all_gather", size, full_ring(machine, 512, 64, "all_gather")
        )
        busy[fabric] = size * 511 / 512 / seconds / 1e9
    assert busy == {"efa": pytest.approx(45, rel=0.1), "efa-slow": pytest.approx(6.5, rel=0.25)}


GPUS = [" ".join(gpu["match"]) for gpu in gpus()]
FABRICS = ["", "none", *fabrics()]


@few_and_many(1, 20, settings(), drawn=st.tuples(*(st.sampled_from(FABRICS) for _ in GPUS)))
def test_every_gpu_builds_with_any_fabric(drawn: tuple[str, ...]) -> None:
    for gpu, fabric in zip(GPUS, drawn, strict=True):
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
    with pytest.raises(MachineError, check=names("TPUv4", "a100-40")):
        build_machine(Parts("TPUv4", 1))
    with pytest.raises(MachineError, check=names("ethernet", "infiniband")):
        build_machine(Parts("A100", 1, fabric="ethernet"))


@pytest.mark.parametrize(
    "name", one_in(3, [gpu["name"] for gpu in gpus() if gpu.get("unmeasured")])
)
def test_what_an_unmeasured_device_takes_from_its_family_is_low_and_listed(name: str) -> None:
    machine = build_machine(Parts(name, 2))
    device = [fact for fact in machine.facts() if fact.key.startswith("device.")]
    taken = {fact.key for fact in device if fact.inherited}
    assert "device.matmul.memory_fraction" in taken
    assert "device.memory_efficiency" in taken or name in ("mi350x", "mi355x")
    of_kin = family_of(name) in ("b200", "mi300x", "mi355x")
    assert "device.matmul.e_max" in taken or of_kin
    assert {fact.confidence for fact in device if fact.inherited} == {"low"}
    own = {"device.memory", "device.memory_bandwidth"}
    assert own <= {fact.key for fact in device if not fact.inherited and fact.confidence != "low"}
    assert machine.device.name not in measured_devices()


@cache
def measured_devices() -> set[str]:
    """The devices of shipped machines whose numbers were measured on them."""
    others = {
        "aurora",
        "dgx-b200",
        "dgx-h200",
        "el-capitan",
        "gb200-nvl72",
        "leonardo",
        "marenostrum5",
    }
    return {load_machine(name).device.name for name in {*machine_names()} - others}


DERIVED = ("aurora", "dgx-b200", "dgx-h200", "el-capitan", "gb200-nvl72", "leonardo")


UNMEASURED = [gpu["name"] for gpu in gpus() if gpu.get("unmeasured")]
ACROSS = [(name, fabric) for name in UNMEASURED for fabric in (",8xNDR", ",4xSlingshot-11")]


@pytest.mark.parametrize(
    ("name", "fabric"),
    [
        *((name, "") for name in UNMEASURED),
        *ACROSS[::9],
        *(pytest.param(*each, marks=pytest.mark.slow) for at, each in enumerate(ACROSS) if at % 9),
    ],
)
def test_each_number_of_an_unmeasured_device_is_its_own_or_inherited_and_low(
    name: str, fabric: str
) -> None:
    machine = load_machine(f"2x{name}{fabric}")
    own = {*gpu_of(name).get("set", {}), *(f"node.links.{key}" for key in ("bandwidth", "switch"))}
    across = (
        "efficiency_across",
        "hop_small",
        "hop_large",
        "chunk_pivot",
        "chunk_width",
        "overlap",
    )
    for fact in machine.facts():
        if not fact.key.startswith(OF_DEVICE) or fact.key in own or not fact.source:
            continue
        fabrics_own = fact.key.rpartition(".")[2] in across and not fact.inherited
        links_own = fact.key.startswith("node.links.") and "links" in gpu_of(name)
        links_own |= fact.key == "node.host.bandwidth" and fact.confidence == "low"  # by its PCIe
        assert fabrics_own or links_own or (fact.inherited and fact.confidence == "low"), fact


@pytest.mark.parametrize("name", DERIVED)
def test_what_a_shipped_machine_takes_of_another_device_is_low(name: str) -> None:
    machine = load_machine(name)
    taken = [f for f in machine.facts() if f.inherited and f.key.startswith(OF_DEVICE)]
    of_library = f"device {machine.device.like}"
    others = {fact.confidence for fact in taken if fact.inherited != of_library}
    assert others == {"low"}
    assert "high" in {fact.confidence for fact in taken if fact.inherited == of_library}


@pytest.mark.parametrize(("name", "least"), [("MI300X", 304), ("MI325X", 304), ("MI355X", 350)])
def test_eight_devices_of_the_mi300_family_reduce_as_measured(name: str, least: float) -> None:
    machine = load_machine(f"2x8x{name},8xNDR")
    lines = bench(machine, "all_reduce", [2**20, 2**30], [2, 8])
    small, large = (line for line in lines if line.devices == 8)
    assert large.busbw_bytes_per_s > least * 1e9
    assert small.seconds == pytest.approx(28e-6, rel=0.2)  # 28.4 us on MI300X
    pair = next(line for line in lines if line.devices == 2 and line.size_bytes == 2**30)
    # AMD: 48 of 64 GB/s on the one link between two of them.
    assert pair.busbw_bytes_per_s == pytest.approx(0.75 * machine.node.links.bytes_per_s, rel=0.01)


def test_every_value_of_the_library_has_a_source_and_a_confidence() -> None:
    for gpu in gpus():
        values = [
            v for v in (*gpu.get("set", {}).values(), gpu.get("links")) if isinstance(v, dict)
        ]
        assert all(
            value["source"] and value["confidence"] in ("high", "medium", "low") for value in values
        )


@pytest.mark.parametrize(
    ("name", "tflops", "mebibytes", "links_gb_per_s"),
    [
        ("H100 PCIe", 756, 81559, 50),
        ("A100-PCIe-40GB", 312, 40960, 25),
        ("B200", 2250, 183359, 900),
        ("GB200", 2500, 189471, 900),
        ("H200", 989, 143771, 450),
        ("GH200 144GB", 989, 146831, 450),
        ("MI300X", 1307.4, 196592, 448),
        ("MI300A", 980.6, 131072, 384),
        ("MI355X", 2516.6, 294912, 537.6),
        ("PVC", 419.4, 65536, 291.5),
    ],
)
def test_devices_have_the_rates_of_their_data_sheets(
    name: str, tflops: float, mebibytes: float, links_gb_per_s: float
) -> None:
    machine = build_machine(Parts(name, 2))
    assert machine.device.peak_flops_per_s["bf16"] == pytest.approx(tflops * 1e12)
    assert machine.device.memory_bytes == mebibytes * 2**20
    counts = machine.node.link_counts()
    links = machine.node.links.switch or sum(n for pair, n in counts.items() if 0 in pair)
    assert links * machine.node.links.bytes_per_s == pytest.approx(links_gb_per_s * 1e9)


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
def test_all_to_alls_on_blackwell_reach_what_a_rack_of_gb200_does(gpu: str) -> None:
    for fabric in ("", "roce"):
        curve = build_machine(Parts(gpu, 2, fabric=fabric)).software.all_to_all
        assert curve is not None
        assert curve.efficiency_within == 0.6605


def test_an_h100_without_a_switch_of_its_own_has_no_nvls() -> None:
    assert build_machine(Parts("H100-PCIe", 2)).software.nvls is None
    assert build_machine(Parts("H100", 2)).software.nvls is not None


def test_a_power_limit_slows_attention_as_it_slows_matmuls() -> None:
    usual, limited = (build_machine(Parts(gpu, 1)).device for gpu in ("h100", "h100-hbm2e"))
    slower = (500 / 700) ** (1 / 3)
    rates = [
        (limited.matmul.sustained, usual.matmul.sustained),
        (limited.attention.forward, usual.attention.forward),
        (limited.attention.backward, usual.attention.backward),
    ]
    assert [own / full for own, full in rates] == pytest.approx([slower] * 3, rel=2e-3)
