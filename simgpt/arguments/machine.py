"""The MACHINE that a user names: whether its number of nodes is one that the user said."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from topologies.errors import MachineError
from topologies.hardware.device_library import gpu_of, half_of
from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.parts_text import is_parts, parse_parts
from topologies.placement import is_of_any_size


def own_machine(name: str) -> Machine | None:
    """The machine, if the user described it, by parts or in a file, with a number of nodes; None of
    a machine that ships, or that has as many nodes as are asked for.

    >>> own_machine("64x8xH100").nodes, own_machine("frontier"), own_machine("dgx-h100")
    (64, None, None)
    """
    if not (is_parts(name) or name.endswith((".toml", ".json"))):
        return None
    machine = load_machine(name)
    return None if is_of_any_size(machine) else machine


def in_segments(machine: Machine, ranks: int) -> list[str]:
    """What is said of a job on several racks: how many devices of each it gets, and how many stay
    idle; nothing of other jobs.

    >>> from topologies.machine_files import load_machine
    >>> in_segments(load_machine("gb200-nvl72"), 256)
    ['segments of 16 trays: 64 of 72 devices in each of 4 racks, 32 stay idle (--segment)']
    >>> in_segments(load_machine("gb200-nvl72"), 72), in_segments(load_machine("dgx-h100"), 64)
    ([], [])
    """
    found = machine.segments(ranks)
    if not found.trays or found.nodes == 1:
        return []
    used, all_devices = found.per_node, machine.devices_per_node
    each = f"{used} of {all_devices} devices in each of {found.nodes} racks"
    words = f"{found.idle} stay idle" if found.idle else "none stays idle but in the last"
    trays = "tray" if found.trays == 1 else "trays"
    return [f"segments of {found.trays} {trays}: {each}, {words} (--segment)"]


def segments_record(machine: Machine, ranks: int) -> dict[str, Any]:
    """The segments of a job as they stand in JSON; nothing of machines without racks."""
    found = machine.segments(ranks)
    return {"segments": asdict(found)} if found.trays else {}


def assumed_of_parts(name: str, machine: Machine) -> list[str]:
    """Sentences on what is assumed for a machine given by its parts (NICs, links between trays of a
    rack) and, on any machine, on a device that trains in fp16 because it has no bf16.

    >>> from topologies.machine_files import load_machine
    >>> assumed_of_parts("4x8xH100", load_machine("4x8xH100"))
    ['NICs assumed, as -m leaves them out: 8 of 400 Gbit/s in each node']
    >>> assumed_of_parts("4x8xH100,8xNDR", load_machine("4x8xH100,8xNDR"))
    []
    >>> assumed_of_parts("16xGB200,4xNDR", load_machine("16xGB200,4xNDR"))
    ['nodes are trays of 4, without the NVLink of racks of 72 between them; 1x64xGB200 has it']
    """
    half = half_of(machine.device.known_as)
    without = "has no bf16 on its tensor cores; the prediction is for"
    found = [f"{machine.device.name} {without} {half}, which is as wide"] if half else []
    if not is_parts(name) or machine.nodes == 1:
        return found
    try:
        parts = parse_parts(name)
    except MachineError:  # with a variant of the library after its last colon
        parts = parse_parts(name.partition(":")[0])
    if not (parts.nics_per_node and parts.nic_bits_per_s):
        nics = machine.node.nics
        rate = f"{nics.bytes_per_s * 8 / 1e9:g} Gbit/s"
        found.append(f"NICs assumed, as -m leaves them out: {nics.count} of {rate} in each node")
    return [*found, *_links_left_out(parts.gpu, machine)]


def _links_left_out(gpu: str, machine: Machine) -> list[str]:
    """What is said of nodes that are trays of racks whose devices one fabric joins."""
    entry, devices = gpu_of(gpu), machine.node.devices
    if "rack" not in entry or str(devices) not in entry["nodes"]:
        return []
    used = entry["rack"] // 16 * 16
    racks = max(machine.nodes * devices // used, 1)
    return [
        f"nodes are trays of {devices}, without the NVLink of racks of {entry['rack']} between "
        f"them; {racks}x{used}x{gpu.upper()} has it"
    ]
