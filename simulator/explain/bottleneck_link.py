"""Which links hold the groups of an axis back: found by making each sort of link faster."""

from __future__ import annotations

import numpy as np

from simulator.ranks.fabric import MachineFabric
from topologies.errors import MachineError
from topologies.files.schema import value_of
from topologies.machine import Machine, known_keys
from topologies.machine_files import with_settings
from topologies.placement import Placement
from workload.grid import Grid

FASTER = 1.25
INSIDE, UNKNOWN = "inside the node", "across nodes"
SORTS = {
    "node.nics.bandwidth": "across NICs",
    "interconnect.link_bandwidth": "across the links between switches",
    "node.links.bandwidth": "across nodes, held back by the links inside them",
}


def limiting_link(
    machine: Machine, placement: Placement, grid: Grid, axes: str, *, pairs: bool = False
) -> str:
    """Where the groups over some axes (`z`, `tp+y`) spend their bandwidth, in words for a sentence.

    That is the sort of link that makes their slowest ring fastest if it gets a quarter faster, or,
    with `pairs`, their slowest all-to-all.
    """
    members = grid.groups(*axes.split("+"))
    if (placement.node[members] == placement.node[members[:, :1]]).all():
        return INSIDE
    base = _slowest(machine, placement, members, pairs)
    gains = {
        words: _slowest(faster, placement, members, pairs) / base
        for key, words in SORTS.items()
        if (faster := _with_faster(machine, key)) is not None
    }
    best = max(gains, key=lambda words: gains[words], default=UNKNOWN)
    return best if gains.get(best, 1) > 1.01 else UNKNOWN


def _slowest(machine: Machine, placement: Placement, members: np.ndarray, pairs: bool) -> float:
    found = MachineFabric(machine, placement.ranks, placement).rings([members], [pairs])
    return min(ring.bytes_per_s for ring in found[0][0])


def _with_faster(machine: Machine, key: str) -> Machine | None:
    """The machine with that bandwidth a quarter higher, or None where it has none of it."""
    facts = {fact.key: fact.value for fact in machine.entries}
    if key not in facts:
        return None
    value = value_of(known_keys(machine.interconnect.kind)[key], facts[key], machine.name)
    try:
        return with_settings(machine, {key: f"{FASTER * value!r} B/s"})
    except MachineError:
        return None
