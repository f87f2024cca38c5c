"""Collective algorithms as phases: what moves where, over which links, in how many steps.

S is the gathered size of an all-gather, the input of a reduce-scatter, the buffer of an all-reduce
or broadcast, what each rank holds before an all-to-all, and the message of a send; p the ranks of
the group, N its nodes, L = p/N its devices per node. Every phase costs

    [ (moved / (rate * efficiency))^q + (hops * hop + steps * step)^q ]^(1/q)

and a collective its launch and its phases, one after the other. q (`overlap`) says how well latency
hides behind transfer: 1 not at all, infinite fully.

Source: the form fits the measured collectives of axonn-ai/sc2025-pccl-reproducer, 8 to 256
devices, within 4 to 8 % (tools/fit_network.py). Not modelled: the library's switches of
protocol, other than by hop and step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from topologies.hardware.software import Curve
from topologies.records import record
from topologies.routing.rings import Ring

# Eight channels with a buffer of 4 MiB in eight slots each: NVIDIA/nccl, src/init.cc
# (DEFAULT_BUFFSIZE), src/include/device.h (NCCL_STEPS); as many channels as in tuners.toml.
SLOTS_BYTES = 8 * (4 << 20) / 8


@record(slots=False)
class Phase:
    """Bytes through each node (or through each device, inside one), their nominal rate and steps.

    `hops` go from node to node and `steps` between devices of a node, each with a chunk. `least_s`
    is the time that the same bytes take on other links meanwhile, whatever the rate reached here:
    the transfer takes the longer of both.
    """

    moved_bytes: float
    bytes_per_s: float
    across: bool
    hops: float
    steps: float
    chunk_bytes: float
    least_s: float = 0.0


@record(slots=False)
class DeviceGroup:
    """A group of ranks as the algorithms see it: its ring, and the rate of its links in a node."""

    ring: Ring
    within_bytes_per_s: float

    @property
    def per_node(self) -> float:
        """Ranks of the group in one node, on average."""
        return self.ring.ranks / self.ring.nodes


def seconds(curve: Curve, phases: Sequence[Phase], ring: Ring | None = None) -> float:
    """Launch and phases of an algorithm, over the way of that ring."""
    return curve.launch_s + sum(phase_seconds(curve, phase, ring) for phase in phases)


def phase_seconds(curve: Curve, phase: Phase, ring: Ring | None = None) -> float:
    """Transfer and latency of one phase, which overlap by the curve's q.

    The ring's distance adds to each hop. Where the links between switches hold it back, the
    library's efficiency on its NICs counts as far as it is the lesser of both.
    """
    efficiency = curve.efficiency_across if phase.across else curve.efficiency_within
    further_s = 0.0 if ring is None else ring.further_s
    if ring is not None and phase.across:
        efficiency = ring.reached_share(efficiency)
    transfer_s = max(phase.moved_bytes / (phase.bytes_per_s * efficiency), phase.least_s)
    latency_s = _latency_seconds(curve, phase) + phase.hops * further_s
    longer = max(transfer_s, latency_s)
    if longer == 0 or min(transfer_s, latency_s) == 0:
        return longer
    q, shorter = curve.overlap, min(transfer_s, latency_s)
    return longer * math.exp(math.log1p((shorter / longer) ** q) / q)


def _latency_seconds(curve: Curve, phase: Phase) -> float:
    chunk = phase.chunk_bytes
    hop_s = between(curve, curve.hop_small_s, curve.hop_large_s, chunk)
    stall = curve.stall
    if stall is not None and stall.chunk_from_bytes <= chunk < stall.chunk_below_bytes:
        hop_s += stall.hop_s
    step_s = between(curve, curve.step_small_s, curve.step_large_s, chunk)
    return phase.hops * hop_s + phase.steps * step_s


def between(curve: Curve, small_s: float, large_s: float | None, chunk_bytes: float) -> float:
    """The latency of a chunk: from the small one to the large one, logistic in ln(chunk).

    Source: as this file; the rise is the library's change from its small-message protocols to
    that for large ones.
    """
    if large_s is None or chunk_bytes <= 0 or large_s == small_s:
        return small_s
    steps = math.log(chunk_bytes / curve.chunk_pivot_bytes) / curve.chunk_width
    large = 1 / (1 + math.exp(-max(-50.0, min(50.0, steps))))
    return float(small_s ** (1 - large) * large_s**large)


def ring(
    size_bytes: float, group: DeviceGroup, passes: int = 1, links_share: float = 1.0
) -> list[Phase]:
    """A ring all-gather or reduce-scatter, or with two passes an all-reduce: S (p-1)/p each.

    Across nodes the links inside, of which rings reach the `links_share`, take no less time than
    for a ring in one node of as many devices, so the slower of NICs and links counts.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce (JPDC 2009). Of a chunk's p-1 steps
    N-1 leave a node if there is one rank in each, else N: a chunk that starts amid its node enters
    it again for the ranks before its own. The floor inside: eight MI325X reduce 16 GiB in 94.2 ms,
    two, four and eight nodes of them in 92.0, 94.9 and 96.4 (github.com/hisohara/ai-scripts
    @0780bb3, training/01_rccl-smoketest). Not modelled: several chunks in flight, other than by q.
    """
    p, nodes, per_node = group.ring.ranks, group.ring.nodes, group.ring.devices_per_node
    moved = passes * size_bytes * (p - 1) / p
    around = 0 if nodes == 1 else nodes if p > nodes else nodes - 1
    hops, steps = passes * around, passes * (p - 1 - around)
    in_one_node = passes * size_bytes * (per_node - 1) / per_node
    inside_s = _beside_nics(in_one_node, group, links_share)
    return [Phase(moved, group.ring.bytes_per_s, nodes > 1, hops, steps, size_bytes / p, inside_s)]


def _beside_nics(inside_bytes: float, group: DeviceGroup, links_share: float) -> float:
    """The time that bytes take on the links inside the nodes of a group of several; 0 in one."""
    if group.ring.nodes == 1:
        return 0.0
    return inside_bytes / (group.within_bytes_per_s * links_share)


def tree(
    size_bytes: float, group: DeviceGroup, passes: int = 2, links_share: float = 1.0
) -> list[Phase]:
    """Two binary trees of half the buffer each: up and down (an all-reduce), or down (one pass).

    Across nodes the busiest one moves S on two nodes (a half up, the other down), 3/2 S on three,
    and 2 S on four and more, where it has a parent and two children in one tree and a parent in the
    other; in one pass it receives S. Inside, the devices of a node are a chain: those amid it send
    S up and S down, one of two devices S in all, at the `links_share` of their links that rings
    reach. All of it is one pipeline, so the slower of NICs and links counts.

    Source: Sanders, Speck and Traeff, Two-tree algorithms (Parallel Computing 2009); NCCL's
    src/graph/trees.cc and tuning.cc (half the NICs' rate from three nodes on; (L-1) steps in the
    node and log2(N) hops each way), chains in the node: NVIDIA/nccl issue 919. Not modelled: the
    time in which the pipeline fills.
    """
    p, nodes, per_node = group.ring.ranks, group.ring.nodes, group.per_node
    rate = group.ring.bytes_per_s
    hops, steps = passes * math.log2(nodes), passes * (group.per_node - 1)
    if nodes == 1:
        inside = passes * size_bytes * (p - 1) / p
        return [Phase(inside, rate, False, 0, steps, size_bytes / p)]
    moved = size_bytes * (min(nodes / 2, 2) if passes == 2 else 1)
    chained = 0 if per_node == 1 else passes if per_node > 2 else 1
    inside_s = chained * size_bytes / (group.within_bytes_per_s * links_share)
    return [Phase(moved, rate, True, hops, steps, size_bytes / p, inside_s)]


def recursive(size_bytes: float, group: DeviceGroup, passes: int = 1) -> list[Phase]:
    """Recursive doubling (all-gather) or halving (reduce-scatter): log2(p) exchanges.

    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
    MPICH (IJHPCA 2005). log2(N) exchanges leave the node, where all L ranks send all they have,
    so a node moves L S (N-1)/N. Not modelled: numbers of ranks that are no power of two.
    """
    p, nodes, per_node = group.ring.ranks, group.ring.nodes, group.per_node
    phases = []
    if per_node > 1:
        inner = passes * size_bytes * (per_node - 1) / p
        steps = passes * math.log2(per_node)
        phases.append(Phase(inner, group.within_bytes_per_s, False, 0, steps, size_bytes / p))
    if nodes > 1:
        outer = passes * per_node * size_bytes * (nodes - 1) / nodes
        hops = passes * math.log2(nodes)
        phases.append(Phase(outer, group.ring.bytes_per_s, True, hops, 0, size_bytes / p))
    return phases


def hierarchical(size_bytes: float, group: DeviceGroup, passes: int = 1) -> list[Phase]:
    """A ring across nodes for each local rank, all at once, and a ring inside each node.

    Source: PCCL (arXiv 2504.18658). The L rings across share the node's NICs and move S (N-1)/N
    through them in hops of S/p; the rings inside move S (L-1)/L. Not modelled: the copies that
    reorder the blocks between the two.
    """
    p, nodes, per_node = group.ring.ranks, group.ring.nodes, group.per_node
    phases = []
    if nodes > 1:
        outer = passes * size_bytes * (nodes - 1) / nodes
        hops = passes * (nodes - 1)
        phases.append(Phase(outer, group.ring.bytes_per_s, True, hops, 0, size_bytes / p))
    if per_node > 1:
        inner = passes * size_bytes * (per_node - 1) / per_node
        steps = passes * (per_node - 1)
        phases.append(Phase(inner, group.within_bytes_per_s, False, 0, steps, size_bytes / p))
    return phases


def nvls(size_bytes: float, group: DeviceGroup, links_share: float = 1.0) -> list[Phase]:
    """Reduction in the switch of a node: each device sends its buffer once and receives it once.

    A ring moves 2 (p-1)/p times as much. Across nodes the switches' results meet by a tree over the
    NICs, in one pipeline with what goes on inside, so the slower of both counts.

    Source: NCCL's NVLS and NVLSTree (src/graph/tuning.cc). Not modelled: the units that the switch
    shares among groups; that small messages fill no pipeline.
    """
    rate = group.within_bytes_per_s
    if group.ring.nodes == 1:
        return [Phase(size_bytes, rate, False, 0, 1, size_bytes)]
    (across,) = tree(size_bytes, group)
    inside_s = size_bytes / (rate * links_share)
    return [Phase(0.0, rate, False, 0, 1, size_bytes), replace(across, steps=0, least_s=inside_s)]


def chain(size_bytes: float, group: DeviceGroup, links_share: float = 1.0) -> list[Phase]:
    """A broadcast along the ring, pipelined: all of S passes every device, on the links inside
    nodes as in `ring`. A device passes a slot of each channel's buffer on when it is full, so that
    a step takes what one with chunks of `SLOTS_BYTES` takes, however many ranks there are.

    Source: NVIDIA/nccl, src/device/broadcast.h and src/include/collectives.h
    (BROADCAST_CHUNKSTEPS, BROADCAST_SLICESTEPS: 1). Not modelled: the root's head start.
    """
    p, nodes = group.ring.ranks, group.ring.nodes
    rate, across = group.ring.bytes_per_s, nodes > 1
    inside_s = _beside_nics(size_bytes, group, links_share)
    chunk = min(size_bytes, SLOTS_BYTES)
    return [Phase(size_bytes, rate, across, nodes - 1, p - nodes, chunk, inside_s)]


def pairwise(size_bytes: float, group: DeviceGroup, links_share: float = 1.0) -> list[Phase]:
    """An all-to-all in which each rank sends S/p to each other: inside and across at once.

    Source: Thakur et al. (see `recursive`), pairwise exchange: p-1 rounds, of which p-L leave the
    node; NCCL's is a send and a receive for each peer in one group call. Each node sends
    L S (p-L)/p through its NICs; the links inside carry S (L-1)/p per device meanwhile, at their
    `links_share`, so the longer of both counts. What a device sends through its NIC it sends over
    the same bus where its links are PCIe's, so that several nodes take no less than one of as many
    devices, S (L-1)/L. The rates are those of the slowest pair
    (`topologies/routing/pair_flows.py`). Not modelled: congestion beyond the group's fair share;
    rounds that are under way at once, other than by q.
    """
    p, nodes, per_node = group.ring.ranks, group.ring.nodes, group.per_node
    inner = size_bytes * (per_node - 1) / p
    if nodes == 1:
        return [Phase(inner, group.within_bytes_per_s, False, 0, p - 1, size_bytes / p)]
    outer = per_node * size_bytes * (p - per_node) / p
    inside_s = _beside_nics(size_bytes * (per_node - 1) / per_node, group, links_share)
    chunk, rate = size_bytes / p, group.ring.bytes_per_s
    return [Phase(outer, rate, True, p - per_node, per_node - 1, chunk, inside_s)]


def two_steps(size_bytes: float, group: DeviceGroup) -> list[Phase]:
    """An all-to-all inside each node and then across nodes, in fewer and larger messages.

    First each rank gathers what its node has for the ranks of its own place in all nodes: S/L to
    each of L-1 neighbours. Then it exchanges S/N with those N-1 ranks; through a node's NICs go
    L S (N-1)/N, as in one step. Where a group has one rank in each node, or one node, nothing is
    left of the other step.

    Source: 2DH all-to-all of Tutel (arXiv 2206.03382), whose copies between the steps are not
    modelled.
    """
    nodes, per_node = group.ring.nodes, group.per_node
    if nodes == 1 or per_node == 1:
        return pairwise(size_bytes, group)
    inner, outer = size_bytes / per_node, size_bytes / nodes
    rate = group.ring.bytes_per_s
    return [
        Phase(inner * (per_node - 1), group.within_bytes_per_s, False, 0, per_node - 1, inner),
        Phase(per_node * outer * (nodes - 1), rate, True, nodes - 1, 0, outer),
    ]


def direct(size_bytes: float, group: DeviceGroup) -> list[Phase]:
    """One message from one rank to another.

    Source: the postal model. Not modelled: the rendezvous of small messages.
    """
    across = group.ring.nodes > 1
    hops, steps = (1, 0) if across else (0, 1)
    return [Phase(size_bytes, group.ring.bytes_per_s, across, hops, steps, size_bytes)]
