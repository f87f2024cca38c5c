"""AxoNN's published bandwidths of groups beside those of our graph, nothing fitted to them.

Those on Frontier were measured with GPUDirect off (data/axonn_groups.toml says how that is known),
and so are rates of `frontier:no-gdr`.
"""

from __future__ import annotations

import numpy as np

from topologies.files.reading import shipped_toml
from topologies.machine import Machine
from topologies.placement import contiguous
from topologies.records import record
from topologies.routing.rings import rings

MEASURED_ON = ("perlmutter", "frontier:no-gdr")  # machines, in the environment of the authors' jobs


@record
class GroupBandwidth:
    """One row: groups of `size` ranks that stand `inner` apart, all of them active at once.

    `nominal` is what the links and NICs allow, `reached` what our library's large all-gathers get
    of it; all in bytes/s.
    """

    inner: int
    size: int
    published_bytes_per_s: float
    nominal_bytes_per_s: float
    reached_bytes_per_s: float

    @property
    def share(self) -> float:
        """The published over the nominal rate: the library's efficiency, if physics explains it."""
        return self.published_bytes_per_s / self.nominal_bytes_per_s


def axonn_group_bandwidths(machine: Machine) -> list[GroupBandwidth]:
    """All published rows for a machine; none for one that the authors did not measure."""
    rows = shipped_toml("validation", "data/axonn_groups.toml").get(machine.name, [])
    return [_beside(machine, inner, size, rate * 1e9) for inner, size, rate in rows]


def _beside(machine: Machine, inner: int, size: int, published: float) -> GroupBandwidth:
    ranks = max(inner * size, machine.devices_per_node)
    grid = np.arange(ranks, dtype=np.int64).reshape(-1, size, inner)
    members = grid.transpose(0, 2, 1).reshape(-1, size)
    _, found = rings(machine, contiguous(machine, ranks), members)
    ring = min(found, key=lambda each: each.bytes_per_s)
    curve = machine.software.all_gather
    efficiency = 1.0
    if curve is not None:
        curve = machine.software.of_pair(curve, ring.pair_links)
        efficiency = curve.efficiency_across if ring.nodes > 1 else curve.efficiency_within
    reached = ring.bytes_per_s * (ring.reached_share(efficiency) if ring.nodes > 1 else efficiency)
    return GroupBandwidth(inner, size, published, ring.bytes_per_s, reached)
