"""The MACHINE that a user names: whether its number of nodes is one that the user said."""

from __future__ import annotations

from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.parts_text import is_parts
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
