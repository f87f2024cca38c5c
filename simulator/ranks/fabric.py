"""The machine's own network as the simulator's fabric: ranks placed, rings routed and timed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from topologies.collectives.collective_time import (
    Kind,
    Reached,
    collective_seconds,
    measured_seconds,
)
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.network import Network
from topologies.placement import Placement, contiguous
from topologies.routing.rings import Ring, rings_together
from topologies.session import session_cached
from workload.kinds import MESSAGES, RING_SHIFT
from workload.sizes.arrays import Indices
from workload.transport import Transport


class MachineFabric:
    """The rings of ranks on a machine; without a placement they fill node after node."""

    def __init__(self, machine: Machine, ranks: int, placement: Placement | None = None) -> None:
        self._machine = machine
        self._placement = contiguous(machine, ranks) if placement is None else placement
        if self._placement.ranks != ranks:
            raise MachineError(
                f"the placement has {self._placement.ranks} ranks, but the plan has {ranks}"
            )

    @property
    def machine(self) -> Machine:
        """The machine on which the ranks are."""
        return self._machine

    @property
    def ranks_per_node(self) -> int:
        """Ranks on the node that has most of them."""
        return int(np.bincount(self._placement.node).max())

    @property
    def compute_share(self) -> float:
        """The share of an overlapped collective's time that its device's compute loses."""
        return self._machine.software.compute_share

    @property
    def links(self) -> tuple[Network, Placement]:
        """What its rings depend on."""
        return self._machine.network, self._placement

    def rings(
        self, together: Sequence[Indices], pairs: Sequence[bool] = ()
    ) -> list[tuple[Sequence[Ring], Indices]]:
        """For each of some axes, given by its groups, (groups, members), the different rings and
        each group's index, while all groups of all of them are active at once; `pairs` says of each
        whether all members of a group send to each other, none by default."""
        every = rings_together(self._machine, self._placement, together, pairs)
        return [(found, index) for index, found in every]

    def slowest(self, rings: Sequence[Ring]) -> list[Ring]:
        """Of rings that differ in their rate alone those than which none is slower."""
        return [ring for alike in _alike_but_for_rate(rings) for ring in _first(alike, -1)]

    def fastest(self, rings: Sequence[Ring]) -> list[Ring]:
        """Of rings that differ in their rate alone those than which none is faster."""
        return [ring for alike in _alike_but_for_rate(rings) for ring in _first(alike, 1)]

    def ideal(self, ranks: int, *, pairs: bool = False) -> list[Ring]:
        """Rings on one of which a gather or a scatter is as fast as on that of any group of so many
        ranks, wherever they are: each has all NICs of its nodes to itself, and links in a node take
        no time. An all-reduce, whose algorithm changes with the nodes, may be faster elsewhere.

        With `pairs` the same for an all-to-all: each rank has a NIC to itself, by which it sends to
        all that no node has room for beside it.
        """
        nics = self._machine.node.nics
        least = -(-ranks // self.ranks_per_node)
        rate = math.inf if least == 1 else nics.count * nics.bytes_per_s
        counts = sorted({least, *(least << n for n in range((ranks // least).bit_length())), ranks})
        if pairs and least > 1:
            # A node's L (p - L) pairs take as long as the p - L' of a rank with most neighbours.
            away = ranks - self.ranks_per_node
            rates = {n: ranks / n * (ranks - ranks / n) * nics.bytes_per_s / away for n in counts}
        else:
            rates = dict.fromkeys(counts, rate)
        return [
            Ring(ranks, nodes, -(-ranks // nodes), rates[nodes])
            for nodes in counts
            if nodes <= ranks
        ]

    def _shift_seconds(self, payload_bytes: int, ring: Ring) -> float:
        """How long all members of a ring take to send to the next one at once.

        As measured; else as a message at the rate of the ring, which all groups share, or, where
        messages were measured, as one between two. Not modelled: links inside a node that a shift,
        with one neighbour each, leaves to others.
        """
        profile = self._machine.profile
        if profile is not None and RING_SHIFT in profile.collectives and ring.ranks > 1:
            table = profile.collectives[RING_SHIFT]
            return measured_seconds(table, RING_SHIFT, payload_bytes, ring.ranks)
        if profile is not None and "send_recv" in profile.collectives and ring.ranks > 1:
            ring = replace(ring, ranks=2)
        return collective_seconds(self._machine, "send_recv", payload_bytes, ring)

    def seconds(self, transport: Transport, payload_bytes: int, ring: Ring) -> float:
        """How long a collective of that payload takes on that ring."""
        if transport.kind == RING_SHIFT:
            return self._shift_seconds(payload_bytes, ring)
        kind = cast(Kind, "send_recv" if transport.kind in MESSAGES else transport.kind)
        sent_s = collective_seconds(
            self._machine,
            kind,
            payload_bytes,
            ring,
            algorithm=self._algorithm(transport, ring),
            reached=Reached(transport.within, transport.across),
        )
        return max(sent_s, payload_bytes / transport.payload_bytes_per_s)

    def _algorithm(self, transport: Transport, ring: Ring) -> str:
        """The algorithm where it is not the library's own: two steps, if nodes have several ranks
        of the ring and it has several nodes, so that something is left of both."""
        if not transport.in_steps or not 1 < ring.nodes < ring.ranks:
            return ""
        if not times_steps(self._machine):
            raise MachineError(
                f"all-to-alls of {self._machine.name} were measured as its library does them, none "
                "of them in steps; leave dispatcher=hierarchical out"
            )
        return "hierarchical"


def times_steps(machine: Machine) -> bool:
    """Whether an all-to-all in steps has a time; a measured table has none."""
    profile = machine.profile
    return profile is None or "all_to_all" not in profile.collectives


def _first(rings: Sequence[Ring], sign: int) -> list[Ring]:
    """Of rings that differ in their rate alone the fastest, or the slowest where the sign is -1.

    Each has a rate and, where links between switches hold it back, a higher one of its NICs. Which
    of two rings is faster the library's efficiency decides, if one is not faster in both.
    """
    by_rates = {(sign * r.bytes_per_s, sign * r.bytes_per_s / r.fabric_share): r for r in rings}
    found: list[Ring] = []
    best = -math.inf
    for (_, of_nics), ring in sorted(by_rates.items(), reverse=True):
        if of_nics > best:
            best = of_nics
            found.append(ring)
    return found


def _alike_but_for_rate(rings: Sequence[Ring]) -> Iterable[Sequence[Ring]]:
    found: dict[Ring, list[Ring]] = {}
    for ring in rings:
        found.setdefault(replace(ring, bytes_per_s=0.0, fabric_share=1.0), []).append(ring)
    return found.values()


@session_cached(8)
def fabric_of(machine: Machine, ranks: int, placement: Placement | None = None) -> MachineFabric:
    """The fabric of these ranks, the same one for as long as others want few else: what was found
    out about its networks is kept with it."""
    return MachineFabric(machine, ranks, placement)
