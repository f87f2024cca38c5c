"""The rings of the groups of one or more axes, and their pairs of members in an all-to-all: what
bandwidth each gets when all run at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.files.schema import MOST_NUMBER
from topologies.kept_results import kept_results, key_of
from topologies.machine import Machine
from topologies.network import Network
from topologies.placement import Placement
from topologies.records import record
from topologies.routing.ring_rates import (
    AxisGroups,
    Rates,
    least_rates,
    pair_links,
    rates_within,
    reach_of,
)
from topologies.session import session_cached

_STEP_BYTES_PER_S = 1e3  # rates closer than this are one ring
_SHARE_DIGITS = 6
# What is kept is read again within these bounds; beyond them it is computed anew.
_LEAST_KEPT, _MOST_FURTHER_S = 1.0, 1.0  # bytes/s, and seconds of a hop
_COUNT, _RATE, _INDEX = np.dtype("<i8"), np.dtype("<f8"), np.dtype("<i4")


@record(slots=False)
class Ring:
    """What a collective's time depends on: equal rings take equal times.

    `bytes_per_s` is the nominal rate at which the ring moves data through each node, before any
    efficiency of the library, and infinite for a group of one rank; `devices_per_node` is the
    most that the group has in one node. `within_bytes_per_s` is what a ring across nodes could
    move over the links inside its nodes, were it not for its NICs; infinite where it needs none.
    `further_s` is what distance adds to each of its hops. `fabric_share` is below 1 where the links
    between switches hold the ring back: what they leave of the rate of its NICs. `pair_links` is
    how many links join the two devices of a group of two in one node, and -1 for other groups.

    Of a group whose members all send to each other, `bytes_per_s` is what leaves a mean node, and
    `within_bytes_per_s` what a mean device sends to others of its node, at the pace of the slowest
    pair; and distance is that between any two of its nodes.
    """

    ranks: int
    nodes: int
    devices_per_node: int
    bytes_per_s: float
    within_bytes_per_s: float = math.inf
    further_s: float = 0.0
    fabric_share: float = 1.0
    pair_links: int = -1

    def reached_share(self, efficiency: float) -> float:
        """The share of its rate that a library reaches which gets that share out of its NICs.

        The links between switches pass on what the NICs send and cost nothing beyond that where
        they have room for it: the lesser of NICs and links counts, not their product.
        """
        return min(1.0, efficiency / self.fabric_share)


Found = tuple[NDArray[np.int64], list[Ring]]


def rings(
    machine: Machine, placement: Placement, members: NDArray[np.int64], *, pairs: bool = False
) -> Found:
    """The ring of each group of an axis, as an index into the list of different rings.

    `members` has shape (groups, p): the ranks of each group in ring order. All groups are
    active at once, so they share the links inside nodes, the NICs and the global links. With
    `pairs` all members of a group send to each other.
    """
    return rings_together(machine, placement, [members], [pairs])[0]


def rings_together(
    machine: Machine,
    placement: Placement,
    members: Sequence[NDArray[np.int64]],
    pairs: Sequence[bool] = (),
) -> list[Found]:
    """As `rings` for each of several axes, with the groups of all of them active at once; `pairs`
    says of each whether its members all send to each other, no axis' by default.

    Across nodes, the channels of all groups share in one max-min allocation. Inside nodes, the
    rings of all groups are packed on the links together. No axis ever gains by another that
    joins: a rate is the least over all selections of these axes (max-min fairness alone would now
    and then let a flow gain where a newcomer slows a third one).

    Not modelled: links inside a node that a ring, held back by its NICs, leaves to others.
    """
    every = pairs or [False] * len(members)
    axes = tuple(AxisGroups(*each) for each in zip(members, every, strict=True))
    return list(_rings_together(machine.network, placement, axes))


@session_cached(64)
def _rings_together(
    network: Network, placement: Placement, axes: tuple[AxisGroups, ...]
) -> list[Found]:
    kept = kept_results()
    if kept is None:
        return _computed(network, placement, axes)
    key = key_of(network.digest, placement.digest, *(axis.digest for axis in axes))
    data = kept.get(key)
    found = None if data is None else unpacked(data, [axis.members.shape for axis in axes])
    if found is None:
        found = _computed(network, placement, axes)
        kept.put(key, packed(found))
    return found


def _computed(network: Network, placement: Placement, axes: tuple[AxisGroups, ...]) -> list[Found]:
    busy = tuple(axis for axis in axes if not axis.are_single)
    rates = iter(least_rates(network, placement, busy)) if busy else iter(())
    within = iter(rates_within(network.node, placement, busy))
    return [
        (np.zeros(len(axis.members), dtype=np.int64), [Ring(1, 1, 1, math.inf)])
        if axis.are_single
        else _rings_of(network, placement, axis, (next(rates), next(within)))
        for axis in axes
    ]


def _rings_of(
    network: Network, placement: Placement, axis: AxisGroups, found: tuple[Rates, Rates]
) -> Found:
    reach, ((rate, of_nics), within) = reach_of(network, placement, axis), found
    rounded = _rounded(rate, rate / _STEP_BYTES_PER_S, 0, _STEP_BYTES_PER_S)
    inside = np.where(reach.nodes > 1, within, np.inf)
    share = _rounded(rate / of_nics, rate / of_nics, _SHARE_DIGITS)
    links = pair_links(network.node, placement, axis)
    table = np.column_stack([reach.nodes, reach.devices_per_node, rounded, inside, share, links])
    different, index = _different_rows(table)
    ranks = axis.members.shape[1]
    rings_found = [
        Ring(ranks, int(nodes), int(most), r, w, reach.further_s if nodes > 1 else 0.0, s, int(n))
        for nodes, most, r, w, s, n in different.tolist()
    ]
    return index, rings_found


def _rounded(
    number: NDArray[np.float64], scaled: NDArray[np.float64], digits: int, unit: float = 1.0
) -> NDArray[np.float64]:
    """Numbers rounded in units, unless nothing would be left of one."""
    found = np.round(scaled, digits) * unit
    return np.where(found > 0, found, number)


def _different_rows(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The different rows, and which of them each row is; most rows are as the one before."""
    begins = np.append(True, (table[1:] != table[:-1]).any(axis=1))
    different, index = table[:1], np.zeros(1, dtype=np.int64)
    if np.count_nonzero(begins) > 1:
        different, index = np.unique(table[begins], axis=0, return_inverse=True)
    return different, np.asarray(index.reshape(-1)[np.cumsum(begins) - 1], dtype=np.int64)


def packed(found: Sequence[Found]) -> bytes:
    """Rings and indices as bytes; an index as its runs of equal values, which are few."""
    parts = []
    for index, rows in found:
        ends = np.append(np.flatnonzero(np.diff(index)) + 1, len(index))
        counts = [(r.ranks, r.nodes, r.devices_per_node, r.pair_links) for r in rows]
        rates = [
            (ring.bytes_per_s, ring.within_bytes_per_s, ring.further_s, ring.fabric_share)
            for ring in rows
        ]
        parts += [np.array([len(rows), len(ends)], dtype=_COUNT), np.array(counts, dtype=_COUNT)]
        parts += [np.array(rates, dtype=_RATE), ends.astype(_INDEX), index[ends - 1].astype(_INDEX)]
    return b"".join(part.tobytes() for part in parts)


def unpacked(data: bytes, shapes: Sequence[tuple[int, ...]]) -> list[Found] | None:
    """What was packed for axes of so many groups of so many ranks; None if it was something
    else, or if no such rings can be."""
    found, at = [], 0

    def taken(kind: np.dtype[Any], count: int) -> NDArray[Any]:
        nonlocal at
        part = np.frombuffer(data, kind, count, at)
        at += part.nbytes
        return part

    try:
        for groups, ranks in shapes:
            rows, runs = taken(_COUNT, 2).tolist()
            if not 0 < min(rows, runs) <= max(rows, runs) <= len(data):
                return None
            counts = taken(_COUNT, 4 * rows).reshape(rows, 4).tolist()
            rates = taken(_RATE, 4 * rows).reshape(rows, 4).tolist()
            ends, value = taken(_INDEX, runs), taken(_INDEX, runs).astype(np.int64)
            counted = np.diff(ends, prepend=0)
            if counted.min() <= 0 or ends[-1] != groups:
                return None
            index = np.repeat(value, counted)
            if not 0 <= value.min() <= value.max() < rows:
                return None
            parts = ([*c[:3], *r, c[3]] for c, r in zip(counts, rates, strict=True))
            found.append((index, [Ring(*part) for part in parts]))
            if not all(_can_be(ring, ranks) for ring in found[-1][1]):
                return None
    except ValueError:
        return None
    return found if at == len(data) else None


def _can_be(ring: Ring, ranks: int) -> bool:
    """Whether a ring of so many ranks may be this one: its numbers are in their ranges."""
    joined = ranks > 1
    return (
        ring.ranks == ranks
        and 1 <= ring.nodes <= ranks
        and 1 <= ring.devices_per_node <= ranks
        and ring.pair_links >= -1
        and (_is_rate(ring.bytes_per_s) if joined else ring.bytes_per_s == math.inf)
        and (_is_rate(ring.within_bytes_per_s) or ring.within_bytes_per_s == math.inf)
        and 0 <= ring.further_s < _MOST_FURTHER_S
        and 10**-_SHARE_DIGITS <= ring.fabric_share <= 1
    )


def _is_rate(number: float) -> bool:
    return _LEAST_KEPT <= number < MOST_NUMBER
