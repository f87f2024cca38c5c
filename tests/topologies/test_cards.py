"""Boards on PCIe, of workstations and older ones: their names, rates, and the way between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.arguments.machine import assumed_of_parts
from simulator.costs.analytic import AnalyticCosts
from tests.messages import names
from topologies.collectives.benchmark import bench
from topologies.errors import MachineError, UnknownDeviceError
from topologies.files.facts import Fact
from topologies.hardware.device_library import exact_gpu, gpus, with_device
from topologies.machine_files import load_machine, with_settings
from workload.op import Op
from workload.op_attributes import Attributes

HOST = "node.host.bandwidth"


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("RTX4090", "rtx4090"),
        ("RTX 4090", "rtx4090"),
        ("rtx-4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("L40S-48GB", "l40s"),
        ("A100-40G", "a100-40"),
        ("a100_sxm4_40GB", "a100-40"),
        ("A10G", "a10g"),
        ("A10-24GB", "a10"),
        ("RTXA6000", "rtx-a6000"),
        ("RTX6000Ada", "rtx6000-ada"),
        ("RTX PRO 6000 Blackwell Server Edition", "rtx-pro6000-server"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("V100-PCIE-32GB", "v100-pcie"),
        ("H100 NVL", "h100-nvl"),
        ("H20-96GB", "h20"),
        ("MI350X", "mi350x"),
    ],
)
def test_a_device_is_known_by_the_names_that_people_write(name: str, entry: str) -> None:
    assert exact_gpu(name)["name"] == entry
    assert load_machine(f"2x8x{name},1xNDR").device.like == entry


@pytest.mark.parametrize("name", ["RTX4090D", "RTX 3090 Ti", "H20-141GB", "V100S", "A10X"])
def test_a_device_that_only_looks_alike_is_another_one(name: str) -> None:
    with pytest.raises(MachineError, check=names(name)):
        load_machine(f"1x8x{name}")


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes_per_s"),
    [
        ("V100", 125, 900),
        ("T4", 65, 320),
        ("A10", 125, 600),
        ("A10G", 70, 600),
        ("A30", 165, 933),
        ("A40", 149.7, 696),
        ("RTX A6000", 154.8, 768),
        ("RTX3090", 71, 936),
        ("L4", 121, 300),
        ("L40S", 362, 864),
        ("RTX4090", 165.2, 1008),
        ("RTX6000Ada", 364, 960),
        ("RTX5090", 209.5, 1792),
        ("RTX PRO 6000", 503.8, 1792),
        ("H20", 148, 4000),
        ("H100 NVL", 835.5, 3900),
        ("MI210", 181, 1638),
        ("MI350X", 2306.9, 8000),
    ],
)
def test_boards_have_the_rates_of_their_data_sheets(
    name: str, tflops: float, gigabytes_per_s: float
) -> None:
    device = load_machine(f"1x8x{name}").device
    assert device.peak_flops_per_s["fp16"] == pytest.approx(tflops * 1e12)
    assert device.peak_flops_per_s["bf16"] == pytest.approx(tflops * 1e12)
    assert device.memory_bytes_per_s == pytest.approx(gigabytes_per_s * 1e9)


def test_a_device_that_is_not_known_shows_the_lines_of_a_file_that_describes_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnknownDeviceError, check=names("H900")) as refused:
        load_machine("2x8xH900,8xNDR")
    path = tmp_path / "h900.toml"
    path.write_text("\n".join(line.strip() for line in refused.value.lines))
    device = load_machine(str(path)).device
    assert device.peak_flops_per_s["bf16"] == pytest.approx(148e12)
    assert (device.memory_bytes, device.memory_bytes_per_s) == (97871 * 2**20, 4e12)


@pytest.mark.parametrize(("devices", "measured"), [(8, 28), (4, 35)])
def test_boards_without_peer_to_peer_access_share_the_memory_of_their_host(
    devices: int, measured: float
) -> None:
    """NVIDIA/nccl issue 1639: eight RTX 5090 in one host reduce at 28 GB/s, four of them at 35."""
    machine = load_machine(f"1x{devices}xRTX5090")
    (line,) = bench(machine, "all_reduce", [2.0**30], [devices])
    assert line.busbw_bytes_per_s == pytest.approx(measured * 1e9, rel=0.05)


def test_the_way_through_the_host_is_that_of_boards_without_peer_to_peer_access_alone() -> None:
    """Eight devices write and read what they send: 160 GB/s of memory leave each of them 10."""
    slow = {"node.host.memory_bandwidth": "160 GB/s"}
    staged = with_settings(load_machine("1x8xRTX4090"), slow)
    assert staged.node.link_bytes_per_s == pytest.approx(10e9)
    direct = with_settings(staged, {"node.links.p2p": "true"})
    assert direct.node.link_bytes_per_s == pytest.approx(25e9)
    rates = [bench(each, "all_gather", [2.0**30], [8])[0].seconds for each in (staged, direct)]
    assert rates[0] > 2 * rates[1]


def test_no_peer_to_peer_access_is_of_devices_on_a_switch() -> None:
    with pytest.raises(MachineError, check=names("node.links.p2p", "PCIe", "node.links.switch")):
        with_settings(load_machine("1x8xV100"), {"node.links.p2p": "false"})


def test_geforce_boards_alone_and_those_of_g5_have_no_peer_to_peer_access() -> None:
    without = [gpu["name"] for gpu in gpus() if gpu.get("links", {}).get("p2p") is False]
    assert without == ["a10g", "rtx3090", "rtx4090", "rtx5090"]


def test_a_node_of_fewer_v100_has_the_links_between_those() -> None:
    """Of a DGX-1's mesh, four devices keep 1 + 1 + 2 links each; a whole one has 6."""
    few, whole = (load_machine(f"1x{n}xV100").node.link_counts() for n in (4, 8))
    assert sum(n for pair, n in few.items() if 0 in pair) == 4
    assert {sum(n for pair, n in whole.items() if d in pair) for d in range(8)} == {6}


def test_a_device_without_bf16_says_that_fp16_is_predicted() -> None:
    for name in ("1x8xV100", "1x8xT4"):
        (said,) = assumed_of_parts(name, load_machine(name))
        assert "fp16" in said
    assert assumed_of_parts("1x8xA40", load_machine("1x8xA40")) == []


@pytest.mark.parametrize(
    ("n", "k", "milliseconds"),
    [(57344, 8192, 35.424), (8192, 28672, 16.8845), (8192, 8192, 4.696)],
)
def test_matmuls_of_an_a40_take_the_time_that_was_measured(
    n: int, k: int, milliseconds: float
) -> None:
    """github.com/microsoft/vidur@e26eb8f, data/profiling/compute/a40, Llama-2-70b with 4,096
    tokens: medians of the products of an MLP and of attention's output. The A40 has the A100's
    shares of its own peak."""
    m = 4096
    how: Attributes = {"form": "NT", "m": m, "n": n, "k": k}
    nbytes = 2 * (m * k + k * n + m * n)
    op = Op("op", "matmul", (), (), flops=2 * m * n * k, nbytes=nbytes, attributes=how)
    seconds = AnalyticCosts(load_machine("1x8xA40")).seconds(op)
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.12)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("T4", 12.5), ("V100", 12.5), ("V100-PCIE", 12.5), ("MI210", 25), ("RTX5090", 50)],
)
def test_the_host_is_reached_by_the_pcie_of_the_board(name: str, gb_per_s: float) -> None:
    """16 lanes of PCIe 3.0, 4.0 and 5.0, less the protocol's overhead."""
    assert load_machine(f"1x8x{name}").node.host.bytes_per_s == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize(
    ("links", "own", "host"),
    [
        ({"switch": 1}, "12.5 GB/s", ("12.5 GB/s", "a test")),
        ({"switch": 1}, "", ("50 GB/s", "data sheet")),
        ({"switch": 18}, "12.5 GB/s", ("12.5 GB/s", "a test")),
        ({"switch": 18}, "", ("20 GB/s", "its machine")),
        ({"pairs": [[0, 1, 1]]}, "", ("20 GB/s", "its machine")),
    ],
)
def test_an_entrys_own_way_to_the_host_goes_before_its_pcie_and_this_before_the_machines(
    links: dict[str, Any], own: str, host: tuple[str, str]
) -> None:
    stated = {HOST: {"value": own, "source": "a test", "confidence": "high"}} if own else {}
    rate = {"bandwidth": "50 GB/s", "source": "data sheet", "confidence": "low"}
    entry = {"name": "new", "links": {**links, **rate}, "set": stated}
    fact = with_device({HOST: Fact(HOST, "20 GB/s", "its machine")}, entry, "another")[HOST]
    assert (fact.key, fact.value, fact.source) == (HOST, *host)


def test_an_mi250_is_no_mi250x() -> None:
    """It has 104 compute units a die, the MI250X 110 (data sheets of AMD)."""
    with pytest.raises(MachineError, match="nearest: mi250x"):
        load_machine("1x8xMI250")
