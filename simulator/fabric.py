"""The machine's own network as the simulator's fabric: ranks placed, rings routed and timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.network import Ints
from topologies.collectives import Kind, collective_seconds
from topologies.machine import Machine
from topologies.network import Ring, rings
from topologies.placement import Placement, contiguous


class MachineFabric:
    """The rings of ranks on a machine; without a placement they fill node after node."""

    def __init__(self, machine: Machine, ranks: int, placement: Placement | None = None) -> None:
        self._machine = machine
        self._placement = contiguous(machine, ranks) if placement is None else placement

    @property
    def compute_share(self) -> float:
        """The share of an overlapped collective's time that its device's compute loses."""
        return self._machine.software.compute_share

    def rings(self, groups: Ints) -> tuple[Sequence[Ring], Ints]:
        """For all groups of an axis, (groups, members): the different rings, each group's index."""
        index, found = rings(self._machine, self._placement, groups)
        return found, index

    def seconds(self, kind: Any, payload_bytes: int, ring: Ring) -> float:
        """How long a collective of that kind and payload takes on that ring."""
        known: Kind = kind
        return collective_seconds(self._machine, known, payload_bytes, ring)
