"""What joins the nodes: a dragonfly of switches, a fat tree, or nothing."""

from __future__ import annotations

from typing import Annotated

from topologies.errors import MachineError
from topologies.files.keys import Key
from topologies.records import record

MOST_GROUPS = 1_000  # every pair of them has a bundle; Slingshot reaches 545
ROUTINGS = ("adaptive", "minimal")
FIXED, ANY = SIZES = ("fixed", "any")


@record(slots=False)
class Dragonfly:
    """Groups of switches, all to all inside a group, and a bundle of links between any two groups.

    `routing = "minimal"` sends every flow over the bundle between its two groups;
    `"adaptive"` lets it detour over other groups, as Slingshot does. `background` is the share of
    every NIC and every link between switches that other jobs take. The last group may hold another
    number of nodes than the rest.

    Source: the OLCF and NERSC user guides; the numbers are in the machine files. Not modelled:
    congestion of the links inside a group, which have a capacity above what its NICs inject.
    """

    kind: Annotated[str, Key("kind")]
    routing: Annotated[str, Key("routing")]
    groups: Annotated[int, Key("groups", most=MOST_GROUPS)]
    nodes_per_group: Annotated[int, Key("nodes_per_group")]
    switches_per_group: Annotated[int, Key("switches_per_group")]
    endpoints_per_switch: Annotated[int, Key("endpoints_per_switch")]
    local_links: Annotated[int, Key("local_links")]
    global_links: Annotated[int, Key("global_links")]
    link_bytes_per_s: Annotated[float, Key("link_bandwidth", "bytes/s")]
    switch_latency_s: Annotated[float, Key("switch_latency", "s")]
    background: Annotated[float, Key("background", zero=True, share=True)] = 0.0
    last_group_nodes: Annotated[int, Key("last_group_nodes", zero=True)] = 0

    def __post_init__(self) -> None:
        """Refuses a routing that is not known."""
        if self.routing not in ROUTINGS:
            raise MachineError(
                f'interconnect.routing = "{self.routing}" is not known; try {" or ".join(ROUTINGS)}'
            )

    @property
    def nodes(self) -> int:
        """How many nodes the groups have room for."""
        last = self.last_group_nodes or self.nodes_per_group
        return (self.groups - 1) * self.nodes_per_group + last

    @property
    def switches(self) -> int:
        """All switches of the machine."""
        return self.groups * self.switches_per_group

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


@record(slots=False)
class FatTree:
    """Leaf switches below spine switches: a flow goes up to a spine and down again.

    A unit of `nodes_per_unit` nodes has one leaf for each rail, and NIC k of every node hangs on
    the leaf of rail k modulo `rails`: so NICs of one index meet on a leaf inside their unit.
    `uplinks_per_leaf` links join a leaf to the spines; flows spread over them evenly. A tree of
    `any` size gets more units where more nodes are asked for (`placement.with_room`).

    Not modelled: collisions of statically hashed routes, and tiers above the spines.
    """

    kind: Annotated[str, Key("kind")]
    units: Annotated[int, Key("units")]
    nodes_per_unit: Annotated[int, Key("nodes_per_unit")]
    rails: Annotated[int, Key("rails")]
    uplinks_per_leaf: Annotated[int, Key("uplinks_per_leaf")]
    spines: Annotated[int, Key("spines")]
    link_bytes_per_s: Annotated[float, Key("link_bandwidth", "bytes/s")]
    switch_latency_s: Annotated[float, Key("switch_latency", "s")]
    background: Annotated[float, Key("background", zero=True, share=True)] = 0.0
    size: Annotated[str, Key("size")] = FIXED

    def __post_init__(self) -> None:
        """Refuses a size that is neither fixed nor any."""
        if self.size not in SIZES:
            raise MachineError(
                f'interconnect.size = "{self.size}" is not known; try {" or ".join(SIZES)}'
            )

    @property
    def nodes(self) -> int:
        """How many nodes the units have room for."""
        return self.units * self.nodes_per_unit

    @property
    def leaves(self) -> int:
        """All leaf switches."""
        return self.units * self.rails

    @property
    def switches(self) -> int:
        """All switches, leaves and spines."""
        return self.leaves + self.spines


@record(slots=False)
class NoInterconnect:
    """A single node that nothing joins to another, such as a workstation."""

    kind: Annotated[str, Key("kind")]

    @property
    def nodes(self) -> int:
        """Just the one."""
        return 1

    @property
    def switches(self) -> int:
        """None."""
        return 0

    @property
    def background(self) -> float:
        """Without a network, other jobs take nothing of it."""
        return 0.0


Interconnect = Dragonfly | FatTree | NoInterconnect
KINDS: dict[str, type[Dragonfly] | type[FatTree] | type[NoInterconnect]] = {
    "dragonfly": Dragonfly,
    "fat-tree": FatTree,
    "none": NoInterconnect,
}
