"""What joins the nodes: a dragonfly of switches, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from topologies.errors import MachineError
from topologies.keys import Key

ROUTINGS = ("adaptive", "minimal")


@dataclass(frozen=True)
class Dragonfly:
    """Groups of switches, all to all inside a group, and a bundle of links between any two groups.

    `routing = "minimal"` sends every flow over the bundle between its two groups;
    `"adaptive"` lets it detour over other groups, as Slingshot does.

    Source: the OLCF and NERSC user guides; the numbers are in the machine files. Not modelled:
    congestion of the links inside a group, which have a capacity above what its NICs inject.
    """

    kind: Annotated[str, Key("kind")]
    routing: Annotated[str, Key("routing")]
    groups: Annotated[int, Key("groups")]
    nodes_per_group: Annotated[int, Key("nodes_per_group")]
    switches_per_group: Annotated[int, Key("switches_per_group")]
    endpoints_per_switch: Annotated[int, Key("endpoints_per_switch")]
    local_links: Annotated[int, Key("local_links")]
    global_links: Annotated[int, Key("global_links")]
    link_bytes_per_s: Annotated[float, Key("link_bandwidth", "bytes/s")]
    switch_latency_s: Annotated[float, Key("switch_latency", "s")]

    def __post_init__(self) -> None:
        """Refuses a routing that is not known."""
        if self.routing not in ROUTINGS:
            raise MachineError(
                f'interconnect.routing = "{self.routing}" is not known; try {" or ".join(ROUTINGS)}'
            )

    @property
    def nodes(self) -> int:
        """How many nodes the groups have room for."""
        return self.groups * self.nodes_per_group

    @property
    def bundle_bytes_per_s(self) -> float:
        """Capacity of the global links between two groups, per direction."""
        return self.global_links * self.link_bytes_per_s

    @property
    def taper(self) -> float:
        """A group's global links over its endpoints, both in bytes/s: below 1 it cannot send all
        that its nodes inject to other groups."""
        endpoints = self.switches_per_group * self.endpoints_per_switch
        return (self.groups - 1) * self.global_links / endpoints


@dataclass(frozen=True)
class NoInterconnect:
    """A single node that nothing joins to another, such as a workstation."""

    kind: Annotated[str, Key("kind")]

    @property
    def nodes(self) -> int:
        """Just the one."""
        return 1


Interconnect = Dragonfly | NoInterconnect
KINDS: dict[str, type[Dragonfly] | type[NoInterconnect]] = {
    "dragonfly": Dragonfly,
    "none": NoInterconnect,
}
