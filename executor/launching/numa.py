"""The cores of the socket that a GPU hangs on, as Linux says; elsewhere nothing is known.

Source: the Linux kernel's Documentation/ABI: sysfs-bus-pci (`numa_node`) and
stable/sysfs-devices-node (`cpulist`).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from executor.errors import LaunchError

SYSFS = Path("/sys")


def bind_beside(gpu: Any, sysfs: Path = SYSFS) -> list[int]:
    """Keep this process on the cores of its GPU's NUMA node, of those it may run on; returns them.
    `gpu` has torch's properties of the GPU. A LaunchError where Linux or torch does not know.

    Memory follows: Linux allocates on the node of the core that first writes.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise LaunchError("--bind numa needs Linux")
    cores = cores_beside(pci_address(gpu), os.sched_getaffinity(0), sysfs)
    os.sched_setaffinity(0, cores)
    return cores


def pci_address(gpu: Any) -> str:
    """Where a GPU is on the PCI bus, as Linux writes it."""
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(gpu, name) for name in names):
        raise LaunchError("--bind numa: this version of torch does not say where a GPU is")
    domain, bus, device = (getattr(gpu, name) for name in names)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def cores_beside(address: str, allowed: Collection[int], sysfs: Path = SYSFS) -> list[int]:
    """The allowed cores of the NUMA node of the device at a PCI address."""
    file = sysfs / "bus/pci/devices" / address / "numa_node"
    node = _read(file)
    if not node.isdecimal():  # -1 where the firmware does not say
        raise LaunchError(
            f"--bind numa: Linux does not know the NUMA node of the GPU at {address}: {file} says "
            f"{node or 'nothing'}"
        )
    cores = sorted(cores_of(_read(sysfs / f"devices/system/node/node{node}/cpulist")) & {*allowed})
    if not cores:
        raise LaunchError(
            f"--bind numa: this rank may run on none of the cores of NUMA node {node}, beside its "
            f"GPU at {address}; let what started it give it these (srun --cpu-bind=none)"
        )
    return cores


def cores_of(cpulist: str) -> set[int]:
    """The cores of a list as the kernel writes it.

    >>> sorted(cores_of("0-2,8"))
    [0, 1, 2, 8]
    """
    cores: set[int] = set()
    for part in filter(None, cpulist.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _read(file: Path) -> str:
    """What a file of sysfs says; "" if it is not there."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
