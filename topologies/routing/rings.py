"""The rings of the groups of one or more axes: what bandwidth each gets when all run at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from topologies.hardware.node import Node
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.routing.flows import ring_rates_across
from topologies.routing.group_nodes import Visits, devices_in, together, visits_of
from topologies.routing.hop_latency import further_seconds
from topologies.routing.ring_packing import packed_rings
from topologies.session import session_cached

_STEP_BYTES_PER_S = 1e3  # rates closer than this are one ring
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Ring:
    """What a collective's time depends on: equal rings take equal times.

    `bytes_per_s` is the nominal rate at which the ring moves data through each node, before any
    efficiency of the library, and infinite for a group of one rank; `devices_per_node` is the
    most that the group has in one node. `within_bytes_per_s` is what a ring across nodes could
    move over the links inside its nodes, were it not for its NICs; infinite where it needs none.
    `further_s` is what distance adds to each of its hops.
    """

    ranks: int
    nodes: int
    devices_per_node: int
    bytes_per_s: float
    within_bytes_per_s: float = math.inf
    further_s: float = 0.0


@dataclass(frozen=True, eq=False)
class _Axis:
    """The groups of an axis, (groups, p), as the key of a cache: equal arrays are equal."""

    members: NDArray[np.int64]

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Axis) and self._digest == other._digest

    @cached_property
    def _digest(self) -> tuple[bytes, tuple[int, ...]]:
        return blake2b(self.members.tobytes()).digest(), self.members.shape


def rings(
    machine: Machine, placement: Placement, members: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[Ring]]:
    """The ring of each group of an axis, as an index into the list of different rings.

    `members` has shape (groups, p): the ranks of each group in ring order. All groups are
    active at once, so they share the links inside nodes, the NICs and the global links.
    """
    return rings_together(machine, placement, [members])[0]


def rings_together(
    machine: Machine, placement: Placement, members: Sequence[NDArray[np.int64]]
) -> list[tuple[NDArray[np.int64], list[Ring]]]:
    """As `rings` for each of several axes, with the groups of all of them active at once.

    Across nodes, the channels of all groups share in one max-min allocation. Inside nodes, the
    rings of all groups are packed on the links together. No axis ever gains by another that
    joins: a rate is the least over all selections of these axes (max-min fairness alone would now
    and then let a flow gain where a newcomer slows a third one).

    Not modelled: links inside a node that a ring, held back by its NICs, leaves to others.
    """
    return list(_rings_together(machine, placement, tuple(_Axis(groups) for groups in members)))


@session_cached(64)
def _rings_together(
    machine: Machine, placement: Placement, axes: tuple[_Axis, ...]
) -> list[tuple[NDArray[np.int64], list[Ring]]]:
    busy = tuple(axis for axis in axes if axis.members.shape[1] > 1)
    rates = iter(_least_rates(machine, placement, busy)) if busy else iter(())
    within = iter(_all_rates_within(machine.node, placement, busy))
    return [
        _rings_of(machine, placement, axis, (next(rates), next(within)))
        if axis.members.shape[1] > 1
        else (np.zeros(len(axis.members), dtype=np.int64), [Ring(1, 1, 1, math.inf)])
        for axis in axes
    ]


def _rings_of(
    machine: Machine, placement: Placement, axis: _Axis, found: tuple[Rates, Rates]
) -> tuple[NDArray[np.int64], list[Ring]]:
    visits, (rate, within) = _visits(placement, axis), found
    local = np.zeros(visits.groups, dtype=np.int64)
    np.maximum.at(local, visits.group, visits.local)
    rounded = np.round(rate / _STEP_BYTES_PER_S) * _STEP_BYTES_PER_S
    inside = np.where(visits.nodes_of_group > 1, within, np.inf)
    table = np.column_stack([visits.nodes_of_group, local, rounded, inside])
    different, index = _different_rows(table)
    ranks, further_s = axis.members.shape[1], further_seconds(machine, visits)
    rings_found = [
        Ring(ranks, int(nodes), int(most), float(r), float(w), further_s if nodes > 1 else 0.0)
        for nodes, most, r, w in different
    ]
    return index, rings_found


def _different_rows(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The different rows, and which of them each row is; most rows are as the one before."""
    begins = np.append(True, (table[1:] != table[:-1]).any(axis=1))
    different, index = np.unique(table[begins], axis=0, return_inverse=True)
    return different, np.asarray(index.reshape(-1)[np.cumsum(begins) - 1], dtype=np.int64)


@session_cached(64)
def _visits(placement: Placement, axis: _Axis) -> Visits:
    return visits_of(placement, axis.members)


@session_cached(256)
def _least_rates(
    machine: Machine, placement: Placement, axes: tuple[_Axis, ...]
) -> tuple[Rates, ...]:
    """The rates of all groups by axis, the least over all selections of the axes."""
    visits = [_visits(placement, axis) for axis in axes]
    rates = list(_all_rates_within(machine.node, placement, axes))
    across = [i for i, part in enumerate(visits) if len(part.group) > part.groups]
    found = _rates_across(machine, placement, tuple(axes[i] for i in across))
    for i, bound in zip(across, found, strict=True):
        rates[i] = np.minimum(rates[i], bound)
    for left_out in range(len(axes) if len(axes) > 1 else 0):
        kept = [i for i in range(len(axes)) if i != left_out]
        fewer = _least_rates(machine, placement, tuple(axes[i] for i in kept))
        for i, bound in zip(kept, fewer, strict=True):
            rates[i] = np.minimum(rates[i], bound)
    return tuple(rates)


@session_cached(256)
def _rates_across(
    machine: Machine, placement: Placement, axes: tuple[_Axis, ...]
) -> tuple[Rates, ...]:
    """The rates by axis over the network alone; apart, since axes in a node do not change them."""
    visits = [_visits(placement, axis) for axis in axes]
    if not visits:
        return ()
    rates = ring_rates_across(machine, together(visits))
    return tuple(np.split(rates, np.cumsum([part.groups for part in visits])[:-1]))


@session_cached(256)
def _all_rates_within(
    node: Node, placement: Placement, axes: tuple[_Axis, ...]
) -> tuple[Rates, ...]:
    """The rates by axis of all groups inside their nodes, packed together."""
    if not axes:
        return ()
    visits = [_visits(placement, axis) for axis in axes]
    rates = _rates_within(node, together(visits))
    return tuple(np.split(rates, np.cumsum([part.groups for part in visits])[:-1]))


def _rates_within(node: Node, visits: Visits) -> Rates:
    """The least rate of each group inside its nodes; infinite where it has one device in each."""
    rates = np.full(visits.groups, np.inf)
    several = np.flatnonzero(visits.local > 1)
    if not several.size:
        return rates
    rows = several[np.lexsort((visits.devices[several], visits.node[several]))]
    first_of_node = np.flatnonzero(np.diff(visits.node[rows], prepend=-1))
    known: dict[bytes, Rates] = {}
    per_row = np.empty(len(rows))
    for start, end in zip(first_of_node, [*first_of_node[1:], len(rows)], strict=True):
        masks = visits.devices[rows[start:end]]
        pattern = masks.tobytes()
        if pattern not in known:
            groups = tuple(devices_in(mask) for mask in masks.tolist())
            known[pattern] = np.array(packed_rings(node, groups)) * node.links.bytes_per_s
        per_row[start:end] = known[pattern]
    np.minimum.at(rates, visits.group[rows], per_row)
    return rates
