"""Where each rank runs: its node, and its device in that node.

Everything else asks a `Placement` alone, so another policy (spread over groups, random with a
seed, a node list) is another function that returns one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TooFewDevicesError
from topologies.machine import Machine


@dataclass(frozen=True, eq=False)
class Placement:
    """The node and the device within it of each rank; both arrays have one entry per rank."""

    node: NDArray[np.int64]
    device: NDArray[np.int64]

    @property
    def ranks(self) -> int:
        """How many ranks are placed."""
        return len(self.node)


def contiguous(machine: Machine, ranks: int) -> Placement:
    """Fills the nodes in order, each with as many ranks as it has devices.

    Consecutive nodes share a switch group, as a job of an empty machine would get them.
    """
    if ranks > machine.devices:
        raise TooFewDevicesError(
            f"{ranks} ranks do not fit {machine.name}, which has {machine.devices} devices"
        )
    node, device = np.divmod(np.arange(ranks, dtype=np.int64), machine.devices_per_node)
    return Placement(node=node, device=device)
