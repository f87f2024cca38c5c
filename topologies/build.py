"""Machines built from a few words: a GPU, how many a node has, its NICs, and what joins them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from topologies.errors import MachineError
from topologies.files.facts import Fact
from topologies.files.printable import shown
from topologies.hardware.device_library import (
    family_of,
    gpu_of,
    lowered,
    own_facts,
    with_device,
)
from topologies.machine import Machine, machine_from_facts
from topologies.parts import Parts, fabrics
from topologies.shipped import machine_names, variant_names

CURVES = ("all_gather", "reduce_scatter", "all_reduce", "tree", "nvls", "send_recv", "broadcast")
GIVEN = "given with the machine"
NODES_PER_UNIT = 32
Load = Callable[[str], Machine]  # of a shipped machine by its name, and after a colon its variant


def machine_of_parts(parts: Parts, variant: str, load: Load) -> Machine:
    """The machine with these parts, made of shipped machines that `load` gives.

    A shipped machine of that name is taken as it is where it has the GPU and enough nodes. A node
    of unusual size is the nearest usual one with more or fewer devices. `variant` is one of that
    node's machine; a MachineError says so where a part, or the variant, is not known.
    """
    gpu = gpu_of(parts.gpu)
    if parts.fabric not in ("", "none", *fabrics()):
        raise MachineError(
            f'fabric "{parts.fabric}" is not known; try {", ".join(fabrics())} or none'
        )
    named = _named(parts, variant, load)
    like = _like(gpu, parts, variant, load) if named is None else named
    facts = {fact.key: fact for fact in like.entries}
    facts = with_device(facts, gpu, like.full_name)
    if named is None:
        _set_node(facts, parts, like)
        _set_fabric(facts, parts, like.name, gpu, load)
    return machine_from_facts(tuple(facts.values()), None, parts.name or like.name)


def _like(gpu: Mapping[str, Any], parts: Parts, variant: str, load: Load) -> Machine:
    """The machine whose node is taken, in a variant of its library if that is taken too."""
    name = _template(gpu, parts.devices_per_node)
    if not variant:
        return load(name)
    fabric = parts.fabric if parts.fabric != "none" else ""
    own = name in fabrics()[fabric or "infiniband"]["machines"]
    if not own and variant != variant_names(name)[0]:
        raise MachineError(
            f'these parts have no variant "{shown(variant)}": only those with the network of '
            f"{name} have its variants"
        )
    return load(f"{name}:{variant}")


def _template(gpu: Mapping[str, Any], devices: int) -> str:
    """The machine whose node is the nearest in size, the larger of two equally near ones."""
    sizes = {int(size): name for size, name in gpu["nodes"].items()}
    wanted = devices or max(sizes)
    return str(sizes[min(sizes, key=lambda size: (abs(math.log(size / wanted)), -size))])


def _named(parts: Parts, variant: str, load: Load) -> Machine | None:
    """The shipped machine that the parts name, in a variant, if it has them all."""
    name = parts.name.lower().removesuffix("-g")
    if name not in machine_names():
        return None
    machine = load(name)
    nics = machine.node.nics
    has_all = (
        parts.nodes <= machine.nodes
        and parts.devices_per_node in (0, machine.devices_per_node)
        and parts.nics_per_node in (0, nics.count)
        and parts.nic_bits_per_s in (0, nics.bytes_per_s * 8)
        and parts.fabric in ("", *(f for f in fabrics() if name in fabrics()[f]["machines"]))
        and family_of(parts.gpu) in machine.device.name.lower()
    )
    if not has_all:
        return None
    return load(f"{name}:{variant}") if variant else machine


def _set_node(facts: dict[str, Fact], parts: Parts, like: Machine) -> None:
    devices = parts.devices_per_node or max(map(int, gpu_of(parts.gpu)["nodes"]))
    count = parts.nics_per_node or like.node.nics.count * devices // like.devices_per_node or 1
    rate = parts.nic_bits_per_s / 8 or like.node.nics.bytes_per_s
    if count > devices:  # a device's NICs serve it together
        rate, count = rate * count / devices, devices
    own: dict[str, Any] = {
        "nodes": parts.nodes,
        "node.devices": devices,
        "node.nics.count": count,
        "node.nics.bandwidth": f"{rate / 1e9!r} GB/s",
        "node.nics.of_device": spread(devices, count),
    }
    if "node.tray" in facts and devices % int(facts["node.tray"].value):
        del facts["node.tray"]  # no whole trays, which nobody runs
    if "node.links.pairs" in facts:
        kept = [pair for pair in facts["node.links.pairs"].value if max(pair[:2]) < devices]
        own["node.links.pairs"] = tuple(kept)
    facts |= {key: Fact(key, value, GIVEN) for key, value in own.items()}
    words = f"{parts.nodes} nodes of {devices} {facts['device.name'].value}"
    words += f", {parts.fabric or 'its usual network'}"
    for label, text in (("name", parts.name or like.name), ("description", words)):
        facts[label] = Fact(label, text, "")
    other = ("reliability.",) if devices != like.devices_per_node else ()
    apart = ("power.", "run_to_run.", "storage.", *other)
    for key in [key for key in facts if key.startswith(apart)]:
        del facts[key]


def spread(devices: int, nics: int) -> tuple[int, ...]:
    """The NIC of each device, where neighbours share one and all serve equally many.

    >>> spread(4, 2)
    (0, 0, 1, 1)
    """
    return tuple(device * nics // devices for device in range(devices))


def device_facts(name: str, devices_per_node: int, load: Load) -> dict[str, Fact]:
    """What the library of devices knows of a GPU: its own values, and those of the shipped machine
    whose node is the nearest in size, with that machine's name in `inherited`."""
    gpu = gpu_of(name)
    like = load(_template(gpu, devices_per_node))
    kept = {fact.key: fact for fact in like.entries if fact.key.startswith(("device.", "node.l"))}
    found = with_device(kept, gpu, like.full_name, ("device.",))
    return {
        key: replace(fact, inherited=like.full_name) if fact is kept.get(key) else fact
        for key, fact in found.items()
        if key.startswith("device.") or fact is not kept.get(key)
    }


def _set_fabric(
    facts: dict[str, Fact], parts: Parts, like: str, gpu: Mapping[str, Any], load: Load
) -> None:
    """A fat tree of full bisection, and the library's rates between nodes: those of `like`, whose
    node it is, if the fabric is its own, else those of the GPU's library."""
    library = str(gpu.get("library", like))
    name = parts.fabric if parts.fabric != "none" else ""
    own = fabrics()[name or "infiniband"]
    rails = int(facts["node.nics.count"].value)
    latency = own["switch_latency"]
    tree: dict[str, Any] = {
        "kind": "fat-tree",
        "units": max(math.ceil(parts.nodes / NODES_PER_UNIT), 1),
        "nodes_per_unit": NODES_PER_UNIT,
        "rails": rails,
        "uplinks_per_leaf": NODES_PER_UNIT,
        "spines": NODES_PER_UNIT,
        "link_bandwidth": facts["node.nics.bandwidth"].value,
    }
    for key in [key for key in facts if key.startswith("interconnect.")]:
        del facts[key]
    why = "estimate: full bisection, a rail for each NIC"
    facts |= {f"interconnect.{k}": Fact(f"interconnect.{k}", v, why) for k, v in tree.items()}
    key = "interconnect.switch_latency"
    facts[key] = Fact(key, latency["value"], latency["source"])
    if like not in own["machines"]:
        _set_library(facts, load(library), gpu)
    if like not in own["machines"] and library not in own["machines"]:
        _set_curves(facts, own["across"])


def _set_library(facts: dict[str, Fact], machine: Machine, gpu: Mapping[str, Any]) -> None:
    """Another machine's library, with the rates that this node's own reached inside it, and what
    the GPU's entry says of it."""
    within = {key: fact for key, fact in facts.items() if key.endswith(".efficiency_within")}
    for key in [key for key in facts if key.startswith("software.")]:
        del facts[key]
    switch = "node.links.switch" in facts
    for fact in machine.entries:
        in_switch = fact.key.startswith("software.nvls")
        if fact.key.startswith("software.") and (switch or not in_switch):
            taken = lowered(fact, machine.full_name) if gpu.get("unmeasured") else fact
            facts[fact.key] = taken
    facts |= {key: fact for key, fact in within.items() if key in facts}
    own = own_facts(gpu, facts)
    facts |= {key: fact for key, fact in own.items() if key.startswith("software.")}


def _set_curves(facts: dict[str, Fact], across: Mapping[str, Any]) -> None:
    """What a fabric says of all curves alike, and of one by its name."""
    for curve in CURVES:
        prefix = f"software.{curve}."
        if f"{prefix}launch" not in facts:
            continue
        for about in (across, across.get(curve, {})):
            for key, value in about.items():
                if isinstance(value, Mapping) or key == "source":
                    continue
                if key == "efficiency_across" or curve != "send_recv":
                    facts[prefix + key] = Fact(prefix + key, value, about["source"])
