"""The table that a collective benchmark prints: time and bandwidths by devices and size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topologies.collectives.collective_time import (
    algorithm_seconds,
    between_pairs,
    collective_seconds,
    picked,
    with_algorithm,
)
from topologies.errors import MachineError
from topologies.files.units import quantity
from topologies.hardware.run_to_run import Band
from topologies.hardware.software import Kind
from topologies.machine import Machine
from topologies.placement import Placement, with_room
from topologies.placement_names import parse_placement
from topologies.records import record
from topologies.routing.rings import Ring, rings
from topologies.session import session_cached

MOST_BYTES = 1e18


@record
class BenchmarkLine:
    """One size on one number of devices, with the algorithm that served it, and the `band` of eight
    of ten runs where somebody measured one on no more nodes."""

    algorithm: str
    devices: int
    size_bytes: float
    seconds: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    band: Band | None = None

    def as_dict(self) -> dict[str, Any]:
        """The line as it stands in JSON."""
        return {
            "algorithm": self.algorithm,
            "devices": self.devices,
            "bytes": self.size_bytes,
            "seconds": self.seconds,
            "algbw_bytes_per_s": self.algbw_bytes_per_s,
            "busbw_bytes_per_s": self.busbw_bytes_per_s,
            "run_to_run": self.band.as_dict(self.seconds) if self.band is not None else None,
        }


def bench(
    machine: Machine,
    kind: Kind,
    sizes: Sequence[float],
    devices: Sequence[float],
    algorithm: str = "auto",
    placement: str = "contiguous",
) -> list[BenchmarkLine]:
    """Every size on every number of devices, one group over all ranks of a placement."""
    own = machine if algorithm == "auto" else with_algorithm(machine, kind, algorithm)
    lines = []
    for count in devices:
        large = with_room(own, int(count))
        ring = ring_over(large, parse_placement(placement, large, int(count)), kind)
        lines += [_line(large, kind, size, ring) for size in sizes]
    return lines


def ring_over(machine: Machine, placement: Placement, kind: Kind = "all_gather") -> Ring:
    """The ring of one group over all ranks of a placement, alone on the machine, for a kind of
    collective."""
    members = np.arange(placement.ranks, dtype=np.int64).reshape(1, -1)
    return rings(machine, placement, members, pairs=between_pairs(kind))[1][0]


@session_cached(4096)
def full_ring(machine: Machine, devices: int, nodes: int, kind: Kind) -> Ring:
    """The ring over the first devices of the first nodes."""
    per_node = -(-devices // nodes)
    if per_node > machine.devices_per_node or nodes > machine.nodes:
        raise MachineError(
            f"{devices} devices on {nodes} nodes do not fit {machine.name}, "
            f"which has {machine.nodes} nodes of {machine.devices_per_node}"
        )
    node, device = np.divmod(np.arange(devices, dtype=np.int64), per_node)
    return ring_over(machine, Placement(node=node, device=device), kind)


def _line(machine: Machine, kind: Kind, size: float, ring: Ring) -> BenchmarkLine:
    if machine.profile is not None and kind in machine.profile.collectives:
        name, seconds = "measured", collective_seconds(machine, kind, size, ring)
    else:
        times = algorithm_seconds(machine, kind, size, ring)
        name = picked(machine, kind, size, ring, times)
        seconds = times[name]
    return BenchmarkLine(
        algorithm=name,
        devices=ring.ranks,
        size_bytes=size,
        seconds=seconds,
        algbw_bytes_per_s=size / seconds,
        busbw_bytes_per_s=size / seconds * bus_factor(kind, ring.ranks),
        band=machine.band(kind, ring.nodes),
    )


def bus_factor(kind: Kind, ranks: int) -> float:
    """Bus over algorithm bandwidth.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md.
    """
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "send_recv": 1.0}
    return factors.get(kind, (ranks - 1) / ranks)


def sizes_of(text: str) -> list[float]:
    """The sizes of FROM:TO by doubling.

    >>> sizes_of("1MiB:4MiB")
    [1048576.0, 2097152.0, 4194304.0]
    """
    return doubling(text, _bytes)


def doubling(text: str, value_of: Callable[[str], float]) -> list[float]:
    """The values from FROM to TO by doubling, TO among them if it is met; one value is itself."""
    first, colon, last = text.partition(":")
    low = value_of(first)
    high = value_of(last) if colon else low
    if high < low:
        raise MachineError(f"{text} runs backwards; write the smaller one first")
    return [low * 2**power for power in range(int(math.log2(high / low) + 1e-9) + 1)]


def _bytes(text: str) -> float:
    digits = len(text) - len(text.lstrip("0123456789."))
    size = quantity(f"{text[:digits]} {text[digits:].strip() or 'B'}".strip(), "bytes")
    if not 1 <= size <= MOST_BYTES:
        raise MachineError(f"{text} is not a size from 1 B to {MOST_BYTES:g} B; write 1MiB:1GiB")
    return size
