"""Where each rank runs: its node, and its device in that node.

A policy chooses the nodes; ranks then fill them in ascending order of their numbers, as Slurm
sorts them, or in the order given. Which rank is which coordinate of the grid is the plan's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Indices
from topologies.errors import MachineError, TooFewDevicesError
from topologies.files.facts import Fact
from topologies.files.hostlist import node_numbers
from topologies.hardware.interconnect import ANY, Dragonfly, FatTree
from topologies.machine import Machine
from topologies.routing.wiring import wiring
from topologies.session import session_cached

ASKED_FOR = "as many as are asked for"
ORDERS = ("sorted", "shuffled")
_FRAGMENTS = 38.2  # pieces of free space that a 64-node job of Frontier got
_MEASURED_NODES = 64


@dataclass(frozen=True, eq=False)
class Placement:
    """The node and the device within it of each rank; both arrays have one entry per rank.

    The arrays must not change: placements with equal ones are equal, for caches.
    """

    node: Indices
    device: Indices

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self.digest == other.digest

    @cached_property
    def digest(self) -> bytes:
        """A digest of both arrays."""
        return blake2b(self.node.tobytes() + self.device.tobytes()).digest()

    @property
    def ranks(self) -> int:
        """How many ranks are placed."""
        return len(self.node)


def contiguous(machine: Machine, ranks: int) -> Placement:
    """Fills the nodes in order, each with as many ranks as it has devices.

    Consecutive nodes share a switch group, as a job of an empty machine would get them.
    """
    return on_nodes(machine, np.arange(_nodes_for(machine, ranks)), ranks)


def scattered(
    machine: Machine, ranks: int, groups: int, seed: int = 0, order: str = "sorted"
) -> Placement:
    """Spreads the nodes evenly over that many groups of the interconnect, drawn with the seed.

    A group that is too small for its share leaves the rest to the others. Where the groups drawn
    have too few nodes, as when one of them is not full, the largest ones are taken instead.
    """
    count = _nodes_for(machine, ranks)
    group_of_node = wiring(machine.network).group
    known = int(group_of_node[-1]) + 1
    if not 1 <= groups <= min(known, count):
        raise MachineError(
            f"scattered:{groups} does not fit {count} nodes on the {known} groups of "
            f"{machine.name}; try 1 to {min(known, count)}"
        )
    generator = np.random.default_rng(seed)
    room = np.bincount(group_of_node)
    chosen = _with_most_room(generator.permutation(known), room, groups, count)
    shares = _shares(room[chosen], count)
    if shares.sum() < count:
        raise MachineError(
            f"scattered:{groups} groups of {machine.name} have {shares.sum()} nodes, but "
            f"{ranks} ranks want {count}; try more groups"
        )
    drawn = [
        generator.choice(np.flatnonzero(group_of_node == group), share, replace=False)
        for group, share in zip(chosen, shares, strict=True)
    ]
    return on_nodes(machine, _ordered(np.concatenate(drawn), order, generator), ranks)


def _with_most_room(drawn: Indices, room: Indices, groups: int, count: int) -> Indices:
    """The first groups drawn, or the largest ones in the order drawn where those hold too few."""
    if room[drawn[:groups]].sum() >= count:
        return drawn[:groups]
    return drawn[np.argsort(-room[drawn], kind="stable")][:groups]


def _shares(room: Indices, count: int) -> Indices:
    """As even shares of `count` as the room of each group allows, the first ones larger by one."""
    level = int(np.searchsorted([np.minimum(room, n).sum() for n in range(room.max() + 1)], count))
    shares = np.minimum(room, level)
    larger = np.flatnonzero(shares == level)
    excess = max(int(shares.sum()) - count, 0)
    shares[larger[len(larger) - excess :]] -= 1
    return shares


def random(machine: Machine, ranks: int, seed: int = 0, order: str = "sorted") -> Placement:
    """Draws the nodes from the whole machine."""
    generator = np.random.default_rng(seed)
    nodes = generator.choice(machine.nodes, _nodes_for(machine, ranks), replace=False)
    return on_nodes(machine, _ordered(nodes, order, generator), ranks)


def from_hostlist(machine: Machine, hostlist: str, ranks: int) -> Placement:
    """The nodes of a Slurm host list, in its order: `frontier[00001-00064,00100]`."""
    numbers = node_numbers(hostlist)
    if max(numbers) >= machine.nodes:
        raise MachineError(
            f'"{hostlist}" names node {max(numbers)}, but {machine.name} has nodes 0 to '
            f"{machine.nodes - 1}"
        )
    return on_nodes(machine, np.array(numbers), ranks)


def scheduler(machine: Machine, ranks: int, seed: int = 0) -> Placement:
    """What a busy machine's scheduler gives, drawn with the seed.

    A job of n nodes gets scattered over G (1 - (1 - 1/G)^f) of the G dragonfly groups, f being
    n * 38.2/64 pieces of free space, or 38.2 from 64 nodes on, and over no fewer than hold it: so
    jobs of whole groups fill them. On other interconnects, nodes are contiguous.

    Source: hpcgroup/perf-variability@508e33a plot/plot_dragonfly_group.py, 102 Frontier jobs of
    64 nodes over 1 to 64 groups, median 30, which gives f. Its 145 Perlmutter jobs touched 2 to 23
    groups as it counts them (128 nodes each), median 9, where this rule gives 19 of 64 nodes each.
    Not modelled: the spread from job to job; what larger jobs get is an assumption.
    """
    fabric = machine.interconnect
    count = _nodes_for(machine, ranks)
    if not isinstance(fabric, Dragonfly) or count == 1:
        return contiguous(machine, ranks)
    pieces = _FRAGMENTS * min(1.0, count / _MEASURED_NODES)
    touched = round(fabric.groups * (1 - (1 - 1 / fabric.groups) ** pieces))
    used = int(wiring(machine.network).group[-1]) + 1
    groups = max(touched, math.ceil(count / fabric.nodes_per_group), 1)
    return scattered(machine, ranks, min(groups, used, count), seed)


def on_nodes(machine: Machine, nodes: NDArray[np.integer], ranks: int) -> Placement:
    """Ranks on the given nodes in their order, each filled with as many as it has devices, or as a
    rack has in whole segments."""
    per_node = machine.segments_on(ranks, len(nodes)).per_node
    if len(nodes) * per_node < ranks:
        raise TooFewDevicesError(
            f"{ranks} ranks do not fit {len(nodes)} nodes of {machine.name}, which have "
            f"{len(nodes) * per_node} devices{_in_segments(machine)}"
        )
    index, device = np.divmod(np.arange(ranks, dtype=np.int64), per_node)
    return Placement(node=nodes.astype(np.int64)[index], device=device)


def _in_segments(machine: Machine) -> str:
    trays = machine.node.segment
    return f" in segments of {trays} trays" if trays else ""


def check_ranks(machine: Machine, ranks: int) -> None:
    """Refuses more ranks than the machine has devices."""
    if ranks > machine.devices:
        raise TooFewDevicesError(
            f"{ranks} ranks do not fit {machine.name}, which has {machine.devices} devices"
        )


def is_of_any_size(machine: Machine) -> bool:
    """Whether the machine has as many nodes as are asked for: a fat tree of any size does."""
    fabric = machine.interconnect
    return isinstance(fabric, FatTree) and fabric.size == ANY


def with_room(machine: Machine, ranks: int) -> Machine:
    """The machine, or one with so many more nodes that it has a device for each rank.

    A fat tree whose size is any grows by whole units, and its spines with them, as many a unit as
    before; machines of a fixed size are refused by a TooFewDevicesError. A machine that has the
    devices stays as it is, so that what is predicted on it does not depend on this.
    """
    if not is_of_any_size(machine):
        check_ranks(machine, ranks)
        return machine
    nodes = machine.segments(ranks).nodes
    return machine if nodes <= machine.nodes else _grown(machine, nodes)


@session_cached(64)
def _grown(machine: Machine, nodes: int) -> Machine:
    fabric = machine.interconnect
    assert isinstance(fabric, FatTree)
    units = math.ceil(nodes / fabric.nodes_per_unit)
    spines = math.ceil(fabric.spines * units / fabric.units)
    counts = {"nodes": nodes, "interconnect.units": units, "interconnect.spines": spines}
    facts = {fact.key: fact for fact in machine.entries}
    facts |= {key: Fact(key, count, ASKED_FOR) for key, count in counts.items()}
    larger = replace(fabric, units=units, spines=spines)
    return replace(machine, nodes=nodes, interconnect=larger, entries=tuple(facts.values()))


def _nodes_for(machine: Machine, ranks: int) -> int:
    check_ranks(machine, ranks)
    nodes = machine.segments(ranks).nodes
    if nodes > machine.nodes:
        raise TooFewDevicesError(
            f"{ranks} ranks need {nodes} nodes{_in_segments(machine)}, but {machine.name} has "
            f"{machine.nodes}"
        )
    return nodes


def check_order(order: str) -> None:
    """A MachineError unless nodes can be taken in that order."""
    if order not in ORDERS:
        raise MachineError(f'node order "{order}" is not known; try {" or ".join(ORDERS)}')


def _ordered(nodes: NDArray[np.integer], order: str, generator: np.random.Generator) -> Indices:
    check_order(order)
    return np.sort(nodes) if order == "sorted" else generator.permutation(nodes)
