"""The cores beside a GPU, as a sysfs says; and what is refused where none does."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from executor.errors import LaunchError
from executor.launching.numa import bind_beside, cores_beside, cores_of, pci_address
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt

# An H200 of a node with two sockets of 8 cores and two threads a core.
GPU = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9B, pci_device_id=0)
ADDRESS = "0000:9b:00.0"
NODES = ("0-7,16-23", "8-15,24-31")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two NUMA nodes, and a GPU on the second."""
    for node, cpulist in enumerate(NODES):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")
    gpu = tmp_path / "bus/pci/devices" / ADDRESS
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text("1\n")
    return tmp_path


def test_a_rank_keeps_to_the_cores_beside_its_gpu(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4, 28)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: kept.append(cores))
    assert bind_beside(GPU, sysfs) == [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27]
    assert kept == [[8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27]]


def test_a_list_of_cores_is_read_as_the_kernel_writes_it() -> None:
    assert cores_of("3") == {3}
    assert cores_of("0-1,8-9,20") == {0, 1, 8, 9, 20}
    assert cores_of("") == set()


def test_where_linux_does_not_know_a_gpus_node_it_is_refused_by_name(sysfs: Path) -> None:
    (sysfs / "bus/pci/devices" / ADDRESS / "numa_node").write_text("-1\n")
    with pytest.raises(LaunchError, check=names("--bind numa", "0000:9b:00.0", "-1")):
        cores_beside(ADDRESS, range(32), sysfs)
    with pytest.raises(LaunchError, check=names("--bind numa", "0000:01:00.0")):
        cores_beside("0000:01:00.0", range(32), sysfs)


def test_cores_that_a_launcher_withholds_are_not_taken(sysfs: Path) -> None:
    with pytest.raises(LaunchError, check=names("NUMA node 1", ADDRESS, "srun --cpu-bind=none")):
        cores_beside(ADDRESS, range(8), sysfs)


def test_a_torch_that_does_not_say_where_a_gpu_is_is_refused() -> None:
    assert pci_address(GPU) == ADDRESS
    with pytest.raises(LaunchError, check=names("--bind numa", "torch")):
        pci_address(SimpleNamespace(name="H200"))


def test_ranks_on_a_cpu_have_no_socket_to_be_bound_to() -> None:
    said = simgpt("run", "tiny-30k", "--device", "cpu", "--bind", "numa", "--no-predict")
    assert (said.status, said.out) == (5, "")
    assert_names(said.err, "--bind numa", "GPU")
