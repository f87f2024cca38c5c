"""One node: its devices, the links between them, and the NICs they hang on."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Annotated

from topologies.errors import MachineError
from topologies.files.keys import Key
from topologies.records import record

ASSUMED_UPDATE = 56e9  # bytes/s of a node
MOST_DEVICES = 576  # of one node, or of what one switch joins, as eight racks of 72
MOST_NICS = 1_024
MOST_LINKS = 1_000  # of a pair; rings take turns at them one by one


@record(slots=False)
class Links:
    """Links between devices: `pairs` lists [device, device, count], `all_pairs` one count for all.

    `switch` is the count of links from each device to a switch that joins them all without
    blocking, as NVSwitch does. The bandwidth is one link's, per direction; both work at once.
    Without `p2p` no device reaches another's memory, as on GeForce boards: what they send on their
    switch, which is that of PCIe, passes the memory of the host.
    """

    bytes_per_s: Annotated[float, Key("bandwidth", "bytes/s")]
    all_pairs: Annotated[int, Key("all_pairs", zero=True, most=MOST_LINKS)] = 0
    pairs: Annotated[tuple[tuple[int, int, int], ...], Key("pairs")] = ()
    switch: Annotated[int, Key("switch", zero=True)] = 0
    p2p: Annotated[bool, Key("p2p")] = True


@record(slots=False)
class Host:
    """The way from one device to the memory of its host, per direction; what an update of AdamW
    on the processors of a node moves in its memory, for all of the node's devices together; and
    the peak rate of that memory, of all sockets together, which counts where devices send to each
    other through it (`Links.p2p`). `memory` is how much of it a node has for what jobs keep there.

    Where a file does not say the latter, it is ASSUMED_UPDATE: DeepSpeed's CPU-Adam on nodes of
    eight A100, where a step of 72.7 billion parameters over 4 nodes takes 10 s instead of 0.2 s
    (deepspeedai/DeepSpeed, issue 6834), 1.9 billion parameters/s a node and 30 bytes each: fp32
    gradient, weight and two moments read, the last three written, and a copy in 16 bits. The
    optimizer's author measured 1.4 billion/s (pull request 735, 11.6 billion in 8.2 s).
    """

    bytes_per_s: Annotated[float, Key("bandwidth", "bytes/s")]
    update_bytes_per_s: Annotated[float, Key("update", "bytes/s")] = ASSUMED_UPDATE
    memory_bytes_per_s: Annotated[float, Key("memory_bandwidth", "bytes/s")] = math.inf
    memory_bytes: Annotated[float, Key("memory", "bytes")] = math.inf


@record(slots=False)
class Nics:
    """The NICs of a node; `of_device[d]` is the NIC that device d hangs on.

    `latency` is that of the smallest message, for information: the library's curves contain it.
    """

    count: Annotated[int, Key("count", zero=True, most=MOST_NICS)]
    bytes_per_s: Annotated[float, Key("bandwidth", "bytes/s")]
    of_device: Annotated[tuple[int, ...], Key("of_device")]
    latency_s: Annotated[float | None, Key("latency", "s")] = None


NO_NICS = Nics(count=0, bytes_per_s=0.0, of_device=())


@record(slots=False)
class Node:
    """A node and what is in it; a machine's nodes are all alike.

    A node that is a rack has devices in trays of `tray` each, of which a scheduler gives whole
    ones: `segment` of them together, or as `segments_of` says.
    """

    devices: Annotated[int, Key("devices", most=MOST_DEVICES)]
    links: Annotated[Links, Key("links")]
    host: Annotated[Host, Key("host")]
    nics: Annotated[Nics, Key("nics")] = NO_NICS
    tray: Annotated[int, Key("tray", zero=True, most=MOST_DEVICES)] = 0
    segment: Annotated[int, Key("segment", zero=True, most=MOST_DEVICES)] = 0

    def __post_init__(self) -> None:
        """Refuses links and NICs that do not fit the devices."""
        for a, b, count in self.links.pairs:
            if not (0 <= a < self.devices and 0 <= b < self.devices and a != b and count >= 1):
                raise MachineError(
                    f"node.links.pairs has [{a}, {b}, {count}], but must name two different "
                    f"devices from 0 to {self.devices - 1} and a count of links"
                )
            if count > MOST_LINKS:
                raise MachineError(
                    f"node.links.pairs has [{a}, {b}, {count}], but a pair has at most "
                    f"{MOST_LINKS:,} links"
                )
        if self.links.switch and (self.links.pairs or self.links.all_pairs):
            raise MachineError(
                "node.links has a switch and pairs; devices that hang on a switch need no pairs"
            )
        if not self.links.p2p and not self.links.switch:
            raise MachineError(
                "node.links.p2p = false needs devices on a PCIe switch; give node.links.switch = 1"
            )
        if self.tray and self.devices % self.tray:
            raise MachineError(
                f"node.tray = {self.tray} does not divide the {self.devices} devices of a node"
            )
        if self.segment and not self.tray:
            raise MachineError(
                f"node.segment = {self.segment} counts trays of a rack, and nodes here are no racks"
            )
        nics = self.nics
        if nics.count and len(nics.of_device) != self.devices:
            raise MachineError(
                f"node.nics.of_device names {len(nics.of_device)} NICs, but the node has "
                f"{self.devices} devices; give one NIC for each"
            )
        if any(not 0 <= nic < nics.count for nic in nics.of_device):
            raise MachineError(
                f"node.nics.of_device = {list(nics.of_device)} names a NIC that is not among "
                f"0 to {nics.count - 1}"
            )

    @property
    def link_bytes_per_s(self) -> float:
        """What one link carries each way: its own rate or, without peer-to-peer access, a device's
        share of the host's memory, in which each byte is written once and read once.

        Source: NVIDIA/nccl, src/transport/shm.cc: the sender's kernel writes into a buffer of the
        host, the receiver's reads it. NVIDIA/nccl issue 1639: eight RTX 5090 (PCIe 5.0, 16
        channels of DDR5-4800) reduce at 28 GB/s, four of them at 35; 0.7 of this is 26.9 and 35.
        Not modelled: that devices get more of the memory while others send nothing.
        """
        rate = self.links.bytes_per_s
        if self.links.p2p:
            return rate
        staged = self.host.memory_bytes_per_s / (2 * self.devices * self.links.switch)
        return min(rate, staged)

    @property
    def device_bytes_per_s(self) -> float:
        """What a device can send to the switch inside its node; 0 where there is none."""
        return self.links.switch * self.link_bytes_per_s

    def link_counts(self) -> dict[tuple[int, int], int]:
        """Links by pair of devices, lower device first; pairs without a link are left out."""
        counts: dict[tuple[int, int], int] = {}
        if self.links.all_pairs:
            counts = dict.fromkeys(combinations(range(self.devices), 2), self.links.all_pairs)
        for a, b, count in self.links.pairs:
            pair = (min(a, b), max(a, b))
            counts[pair] = counts.get(pair, 0) + count
        return counts
