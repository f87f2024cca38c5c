"""Racks whose devices one fabric joins: how many of a rack's trays a job gets.

A job that one rack holds gets one. A larger one gets segments: equally many trays each, which a
rack holds whole, and as many of them in a rack as fit. Without a number of trays for a segment it
is the largest that divides the job's trays, as long as the machine has the racks for it.

Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/utils/executors.py, which asks Slurm for
such segments (256 GB200: four of 16 trays of the 18 in a rack); sbatch's --segment, whose number
must divide the job's nodes.
"""

from __future__ import annotations

from topologies.errors import MachineError
from topologies.records import record


@record
class Segments:
    """How the ranks of a job lie in nodes: `trays` of a segment (0 where nodes are no racks), ranks
    on each node but the last, how many nodes, and the devices of these that no segment has."""

    trays: int
    per_node: int
    nodes: int
    idle: int


def segments_of(
    devices: int, tray: int, ranks: int, *, segment: int = 0, most_nodes: int | None = None
) -> Segments:
    """The segments of a job on nodes of so many devices, in trays of `tray` (0: nodes are no
    racks), on `most_nodes` at most.

    A MachineError where a `segment` that is asked for does not divide the job's trays.
    """
    most = devices // tray if tray else 1
    if most == 1:
        return _segments(devices, ranks, 0, devices)
    trays = -(-ranks // tray)
    sizes = [size for size in range(min(most, trays), 0, -1) if trays % size == 0]
    if segment and segment not in sizes:
        raise MachineError(
            f"segments of {segment} trays do not divide the {trays} trays of {ranks} devices; "
            f"try {', '.join(map(str, reversed(sizes)))}"
        )
    found = [_segments(devices, ranks, each, most // each * each * tray) for each in sizes]
    if segment:
        return found[sizes.index(segment)]
    fit = (each for each in found if most_nodes is None or each.nodes <= most_nodes)
    return next(fit, found[-1])


def _segments(devices: int, ranks: int, trays: int, per_node: int) -> Segments:
    nodes = -(-ranks // per_node)
    return Segments(trays, per_node, nodes, nodes * (devices - per_node))
