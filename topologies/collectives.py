"""How long a collective takes on a ring, or by a tree, or as measured.

S is the gathered size of an all-gather, the input size of a reduce-scatter and the buffer of an
all-reduce; p the ranks of the ring.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal

from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.network import Ring
from topologies.profile import Table
from topologies.software import Curve, Tree

Kind = Literal["all_gather", "reduce_scatter", "all_reduce"]


def collective_seconds(machine: Machine, kind: Kind, payload_bytes: float, ring: Ring) -> float:
    """Time of one collective: from the machine's measured table if it has one, else the model."""
    if ring.ranks == 1:
        return 0.0
    if machine.profile is not None and kind in machine.profile.collectives:
        table = machine.profile.collectives[kind]
        return measured_seconds(table, kind, payload_bytes, ring.ranks)
    if kind == "all_reduce":
        return _all_reduce_seconds(machine, payload_bytes, ring)
    return ring_seconds(_curve(machine, kind), payload_bytes, ring)


def _curve(machine: Machine, kind: Literal["all_gather", "reduce_scatter"]) -> Curve:
    curve: Curve | None = getattr(machine.software, kind)
    if curve is None:
        raise MachineError(
            f"{machine.name} has neither software.{kind} nor a measured table of {kind}; "
            "measure it with simgpt calibrate"
        )
    return curve


def ring_seconds(curve: Curve, payload_bytes: float, ring: Ring) -> float:
    """launch + [ (S (p-1)/p / rate)^q + ((nodes-1) hop)^q ]^(1/q).

    Source: form and constants are fitted to the measured collectives of axonn-ai/
    sc2025-pccl-reproducer, 8 to 256 devices (4 to 8 % mean error, 10 to 14 % when extrapolated
    to 1,024). Not modelled: the library's switches of protocol, other than by the hop.
    """
    q = curve.overlap
    efficiency = curve.efficiency_across if ring.nodes > 1 else curve.efficiency_within
    moved_bytes = payload_bytes * (ring.ranks - 1) / ring.ranks
    transfer_s = moved_bytes / (ring.bytes_per_s * efficiency)
    latency_s = (ring.nodes - 1) * hop_seconds(curve, payload_bytes / ring.ranks)
    return float(curve.launch_s + (transfer_s**q + latency_s**q) ** (1 / q))


def hop_seconds(curve: Curve, chunk_bytes: float) -> float:
    """Latency of one step from node to node: between hop_small and hop_large, by the chunk.

    Source: as `ring_seconds`; the rise is the library's change from its small-message protocols
    to that for large ones.
    """
    if chunk_bytes <= 0:
        return curve.hop_small_s
    steps = math.log(chunk_bytes / curve.chunk_pivot_bytes) / curve.chunk_width
    large = 1 / (1 + math.exp(-steps))
    return math.exp((1 - large) * math.log(curve.hop_small_s) + large * math.log(curve.hop_large_s))


def _all_reduce_seconds(machine: Machine, payload_bytes: float, ring: Ring) -> float:
    """The cheaper of ring and tree, which is what the tuners of NCCL and RCCL take.

    The ring is a reduce-scatter followed by an all-gather in one kernel, so it launches once.
    """
    gather, scatter = _curve(machine, "all_gather"), _curve(machine, "reduce_scatter")
    both_s = ring_seconds(gather, payload_bytes, ring) + ring_seconds(scatter, payload_bytes, ring)
    by_ring_s = both_s - min(gather.launch_s, scatter.launch_s)
    tree = machine.software.tree
    return by_ring_s if tree is None else min(by_ring_s, tree_seconds(tree, payload_bytes, ring))


def tree_seconds(tree: Tree, payload_bytes: float, ring: Ring) -> float:
    """launch + 2 log2(nodes) hop + 2 S (p-1)/p / (rate * efficiency): up the tree, and down.

    Source: the latency is NCCL's own model (src/graph/tuning.cc); the efficiency is the machine
    file's. Not modelled: its dependence on the size, for which no data are at hand.
    """
    moved_bytes = 2 * payload_bytes * (ring.ranks - 1) / ring.ranks
    transfer_s = moved_bytes / (ring.bytes_per_s * tree.efficiency)
    return tree.launch_s + 2 * math.log2(ring.nodes) * tree.hop_s + transfer_s


def measured_seconds(table: Table, kind: str, payload_bytes: float, ranks: int) -> float:
    """Interpolates a table of (ranks, bytes, seconds) log-log in bytes for this group size.

    Below the smallest measured size its time holds; above the largest its bandwidth does.
    """
    if table.columns != ("ranks", "bytes", "seconds"):
        raise MachineError(
            f"the measured table of {kind} has columns {list(table.columns)}, "
            "but wants ranks, bytes, seconds"
        )
    points = sorted((row[1], row[2]) for row in table.rows if row[0] == ranks)
    if not points:
        sizes = ", ".join(f"{size:g}" for size in sorted({row[0] for row in table.rows}))
        raise MachineError(f"{kind} was not measured in groups of {ranks}, only of {sizes}")
    if payload_bytes <= points[0][0]:
        return points[0][1]
    if payload_bytes >= points[-1][0]:
        return points[-1][1] * payload_bytes / points[-1][0]
    above = bisect_left(points, (payload_bytes, -math.inf))
    (b0, t0), (b1, t1) = points[above - 1], points[above]
    weight = math.log(payload_bytes / b0) / math.log(b1 / b0)
    return t0 * math.exp(weight * math.log(t1 / t0))
