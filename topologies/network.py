"""What of a machine the rates of its links depend on, and so what results about them are kept by.

Machines that differ in anything else, such as their software or their devices' speed, share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from topologies.hardware.interconnect import Interconnect
from topologies.hardware.node import Node


@dataclass(frozen=True, eq=False)
class Network:
    """The nodes of a machine, what is in each of them, and what joins them.

    Networks of equal parts are equal, for caches.
    """

    nodes: int
    node: Node
    interconnect: Interconnect

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and self.digest == other.digest

    @cached_property
    def digest(self) -> bytes:
        """A digest of every number of these parts."""
        return blake2b(repr((self.nodes, self.node, self.interconnect)).encode()).digest()
