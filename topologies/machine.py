"""A machine: its nodes, what is in them and between them, and the source of every number."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Any

from topologies.errors import MachineError
from topologies.files.facts import Fact, grouped, put, read_facts, write_facts
from topologies.files.keys import Key
from topologies.files.schema import Leaf, checked, leaves, nearest
from topologies.files.structured import structured
from topologies.hardware.device import Device
from topologies.hardware.interconnect import ANY, KINDS, FatTree, Interconnect
from topologies.hardware.node import Node
from topologies.hardware.profile import Profile
from topologies.hardware.profile_file import read_profile
from topologies.hardware.reliability import Reliability, Storage
from topologies.hardware.run_to_run import Band, RunToRun
from topologies.hardware.segments import Segments, segments_of
from topologies.hardware.software import Software
from topologies.network import Network
from topologies.records import record
from topologies.session import session_cached

MOST_PARTS = 10_000_000
# What a profile's tables say nothing of.
UNMEASURED = ("device.memory", "device.reserve", "device.name", "software.compute_share")


@record(slots=False)
class Power:
    """What a node draws idle and at most, and what a switch draws."""

    node_idle_w: Annotated[float, Key("node_idle", "W")]
    node_max_w: Annotated[float, Key("node_max", "W")]
    switch_w: Annotated[float, Key("switch", "W")]


@record(slots=False)
class Machine:
    """A machine of like nodes. Change its numbers through `with_settings`, which keeps `entries`,
    the facts it was built from, in step; only `profile` may be replaced by itself. `variant` names
    its software, where the file has several.
    """

    name: Annotated[str, Key("name")]
    description: Annotated[str, Key("description")]
    nodes: Annotated[int, Key("nodes")]
    device: Annotated[Device, Key("device")]
    node: Annotated[Node, Key("node")]
    interconnect: Annotated[Interconnect, Key("interconnect")]
    software: Annotated[Software, Key("software")]
    power: Annotated[Power | None, Key("power")] = None
    run_to_run: Annotated[RunToRun | None, Key("run_to_run")] = None
    reliability: Annotated[Reliability | None, Key("reliability")] = None
    storage: Annotated[Storage | None, Key("storage")] = None
    variant: Annotated[str, Key("variant")] = ""
    profile: Profile | None = None
    entries: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        """Refuses more nodes than the interconnect joins, an interconnect without NICs, and more
        parts than memory is spent on."""
        if self.nodes > self.interconnect.nodes:
            raise MachineError(
                f"nodes = {self.nodes}, but the interconnect has room for {self.interconnect.nodes}"
            )
        for what, count in (
            ("devices", self.devices),
            ("NICs", self.nodes * self.node.nics.count),
            ("switches", self.interconnect.switches),
        ):
            if count > MOST_PARTS:
                raise MachineError(f"{count:,} {what} are more than the {MOST_PARTS:,} modelled")
        if self.nodes > 1 and not self.node.nics.count:
            raise MachineError(f"nodes = {self.nodes} need node.nics to reach each other")

    @cached_property
    def network(self) -> Network:
        """The part that the rates of its links depend on."""
        return Network(self.nodes, self.node, self.interconnect)

    @property
    def full_name(self) -> str:
        """The name with that of the variant: `frontier:rccl-rendezvous`."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @property
    def devices_per_node(self) -> int:
        """Devices in one node."""
        return self.node.devices

    @property
    def devices(self) -> int:
        """Devices in the whole machine."""
        return self.nodes * self.node.devices

    def segments(self, ranks: int) -> Segments:
        """How a job of so many ranks lies in nodes that are racks; else it fills them."""
        fabric = self.interconnect
        grows = isinstance(fabric, FatTree) and fabric.size == ANY
        return self.segments_on(ranks, None if grows else self.nodes)

    def segments_on(self, ranks: int, most_nodes: int | None) -> Segments:
        """As `segments`, on so many of the machine's nodes at most, or on any number."""
        node = self.node
        return segments_of(
            node.devices, node.tray, ranks, segment=node.segment, most_nodes=most_nodes
        )

    def band(self, what: str, nodes: int) -> Band | None:
        """What eight of ten runs of a `step` or a kind of collective take on so many nodes; None
        where the file has no runs of that, or only some on more nodes."""
        return self.run_to_run.band(what, nodes) if self.run_to_run is not None else None

    def facts(self) -> list[Fact]:
        """Every number of the machine as its file writes it, with its source."""
        return [fact for fact in self.entries if not fact.is_label]


@session_cached(8)
def known_keys(kind: str) -> dict[str, Leaf]:
    """Every key that the file of a machine with this kind of interconnect may have. It is kept for
    others, and must not change."""
    joined = leaves(KINDS[kind], "interconnect.")
    others = (leaf for leaf in leaves(Machine) if not leaf.key.startswith("interconnect."))
    return {leaf.key: leaf for leaf in (*others, *joined)}


def check_unmeasured(machine: Machine, key: str) -> None:
    """Refuses to change what the machine's measured tables decide."""
    if _measured(machine, key):
        raise MachineError(
            f"{machine.name} was calibrated: its measured tables decide, so {key} changes nothing"
        )


def _measured(machine: Machine, key: str) -> bool:
    """Whether a profile's tables stand in for what a key says."""
    profile = machine.profile
    if profile is None or key in UNMEASURED or key.startswith("device.power."):
        return False
    kernels = key.startswith("device.") and bool(profile.kernels)
    return kernels or (key.startswith(("software.", "node.links.")) and bool(profile.collectives))


def machine_from_dict(document: Mapping[str, Any], origin: str) -> Machine:
    """Builds a machine from the document of its file; `origin` is that file's name, for errors."""
    _check_tables(document, origin)
    tables = {name: value for name, value in document.items() if name != "profile"}
    machine = machine_from_facts(read_facts(tables, origin), None, origin)
    if "profile" not in document:
        return machine
    profile = read_profile(document["profile"], machine.devices, origin)
    return dataclasses.replace(machine, profile=profile)


def _check_tables(document: Mapping[str, Any], origin: str) -> None:
    """Refuses tables that no machine has, before anybody misses what stands in them."""
    keys = known_keys("none")
    known = {key.partition(".")[0] for key in keys if "." in key} | {"profile", "sources"}
    for name, value in document.items():
        if isinstance(value, Mapping) and "value" not in value and name not in known:
            raise MachineError(
                f"{origin}: {name} is not a table of a machine"
                f"{nearest(name, sorted(known | {'variants'}))}"
            )


def machine_from_facts(facts: Collection[Fact], profile: Profile | None, origin: str) -> Machine:
    """Builds a machine from its facts, after checking each of them."""
    kinds = [fact.value for fact in facts if fact.key == "interconnect.kind"]
    if not kinds or kinds[0] not in KINDS:
        raise MachineError(
            f"{origin}: interconnect.kind is {kinds[0] if kinds else 'missing'}; "
            f"try {', '.join(list(KINDS)[:-1])} or {list(KINDS)[-1]}"
        )
    tables: dict[str, Any] = {}
    for path, value in checked(facts, known_keys(kinds[0]), origin).items():
        put(tables, path, value)
    if not tables.get("device", {}).get("peak_flops"):
        raise MachineError(f"{origin}: device.peak_flops is missing; give it at least one dtype")
    machine = _machine(tables, origin)
    return dataclasses.replace(machine, profile=profile, entries=grouped(facts))


def _machine(tables: Mapping[str, Any], origin: str) -> Machine:
    """The machine of tables whose values were checked; its parts may not suit each other."""
    joined = tables["interconnect"]
    try:
        network = structured(KINDS[joined["kind"]], joined)
        machine: Machine = structured(Machine, {**tables, "interconnect": network})
    except MachineError as error:
        raise MachineError(f"{origin}: {error}") from None
    return machine


def machine_to_dict(machine: Machine) -> dict[str, Any]:
    """The document that `machine_from_dict` reads as this machine."""
    document = write_facts(machine.entries)
    if machine.profile is not None:
        document["profile"] = dataclasses.asdict(machine.profile)
    return document
