"""Racks whose devices one fabric joins: how many of a rack's trays a job gets.

A job that one rack holds gets one. A larger one gets segments: equally many trays each, which a
rack holds whole, and as many of them in a rack as fit. Without a number of trays for a segment it
is the largest that divides the job's trays, as long as the machine has the racks for it.

Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/utils/executors.py, which asks Slurm for
such segments (256 GB200: four of 16 trays of the 18 in a rack); sbatch's --segment, whose number
must divide the job's nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.errors import MachineError
from topologies.hardware.node import Node


@dataclass(frozen=True, slots=True)
class Segments:
    """How the ranks of a job lie in nodes: `trays` of a segment (0 where nodes are no racks), ranks
    on each node but the last, how many nodes, and the devices of these that no segment has."""

    trays: int
    per_node: int
    nodes: int
    idle: int


def segments_of(node: Node, ranks: int, most_nodes: int | None = None) -> Segments:
    """The segments of a job on so many nodes at most, or on any number.

    A MachineError where node.segment does not divide the job's trays.
    """
    most = node.devices // node.tray if node.tray else 1
    if most == 1:
        return _segments(node, ranks, 0, node.devices)
    trays = -(-ranks // node.tray)
    sizes = [size for size in range(min(most, trays), 0, -1) if trays % size == 0]
    if node.segment and node.segment not in sizes:
        raise MachineError(
            f"segments of {node.segment} trays do not divide the {trays} trays of {ranks} devices; "
            f"try {', '.join(map(str, reversed(sizes)))}"
        )
    found = [_segments(node, ranks, each, most // each * each * node.tray) for each in sizes]
    if node.segment:
        return found[sizes.index(node.segment)]
    return next(
        (each for each in found if most_nodes is None or each.nodes <= most_nodes), found[-1]
    )


def _segments(node: Node, ranks: int, trays: int, per_node: int) -> Segments:
    nodes = -(-ranks // per_node)
    return Segments(trays, per_node, nodes, nodes * (node.devices - per_node))
