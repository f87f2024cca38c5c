"""Which ranks meet in a collective, over which ring, and which ranks behave alike.

Two ranks are of one class if for every group they are in, the ring is the same and so are the
classes of the members. The classes are the coarsest such partition, found by colour refinement; one
rank of each class is then simulated for all.

Not modelled: collectives of different axes that overlap in time do not slow each other down; those
of one axis share their links, because a `Ring` already says what its group gets of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.ticks import to_ticks
from workload.grid import Grid
from workload.op import Op
from workload.program import Program

Ints = NDArray[np.int64]
Axes = tuple[str, ...]


class Fabric(Protocol):
    """What connects the ranks: it knows each group's ring and how long a collective takes on it.

    `compute_share` of an overlapped collective's time is lost to its device's compute stream.
    """

    @property
    def compute_share(self) -> float:
        """See above; between 0 and 1."""
        ...

    def rings(self, groups: Ints) -> tuple[Sequence[Hashable], Ints]:
        """For all groups of an axis, (groups, members): the different rings, each group's index."""
        ...

    def seconds(self, kind: str, payload_bytes: int, ring: Any) -> float:
        """How long a collective of that kind and payload takes on that ring."""
        ...


@dataclass(frozen=True, slots=True)
class Meetings:
    """Who meets over one set of axes: for each class its ring and its meeting, for each meeting
    the number of classes in it."""

    rings: tuple[Hashable, ...]
    meeting: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """The rank classes of a program: `ranks` has one rank of each, `meetings` whom it meets."""

    fabric: Fabric
    ranks: tuple[int, ...]
    meetings: Mapping[Axes, Meetings]

    def ticks(self, op: Op) -> list[int]:
        """How long a collective lasts once everyone is there, for each class."""
        rings = self.meetings[op.axes].rings
        last = {
            ring: to_ticks(self.fabric.seconds(op.kind, op.nbytes, ring))
            for ring in dict.fromkeys(rings)
        }
        return [last[ring] for ring in rings]


def network_of(program: Program, fabric: Fabric, *, unfold: bool = False) -> Network:
    """The network as this program uses it; with `unfold`, every rank is a class of its own."""
    grid = program.plan.grid
    used = dict.fromkeys(op.axes for op in program.ops if op.is_collective)
    groups = {axes: grid.groups(*axes) for axes in used}
    found = {axes: fabric.rings(members) for axes, members in groups.items()}
    group_of = {axes: _group_of(members, grid.ranks) for axes, members in groups.items()}
    if unfold:
        colours = np.arange(grid.ranks, dtype=np.int64)
    else:
        rings_of = [found[axes][1][group_of[axes]] for axes in used]
        colours = _refined(grid, rings_of, list(groups.values()), list(group_of.values()))
    _, first = np.unique(colours, return_index=True)
    ranks = np.sort(first)
    meetings = {
        axes: _meetings(groups[axes], group_of[axes][ranks], colours, ranks, found[axes])
        for axes in used
    }
    return Network(fabric, tuple(ranks.tolist()), meetings)


def _group_of(groups: Ints, ranks: int) -> Ints:
    """For each rank the index of its group."""
    index = np.empty(ranks, dtype=np.int64)
    index[groups] = np.arange(len(groups), dtype=np.int64)[:, None]
    return index


def _meetings(
    groups: Ints, chosen: Ints, colours: Ints, ranks: Ints, found: tuple[Sequence[Hashable], Ints]
) -> Meetings:
    """Classes meet if they stand together in a representative's group; `chosen` are those groups.

    A group's classes are the same for each of its members, so the lowest of them names the meeting.
    """
    class_of = np.empty(int(colours.max()) + 1, dtype=np.int64)
    class_of[colours[ranks]] = np.arange(len(ranks), dtype=np.int64)
    lowest = class_of[colours[groups[chosen]]].min(axis=1)
    _, meeting = np.unique(lowest, return_inverse=True)
    rings, ring_of_group = found
    return Meetings(
        tuple(rings[index] for index in ring_of_group[chosen].tolist()),
        tuple(meeting.tolist()),
        tuple(np.bincount(meeting).tolist()),
    )


def _refined(grid: Grid, rings_of: list[Ints], groups: list[Ints], group_of: list[Ints]) -> Ints:
    """Colour refinement: split ranks by their rings, then by their groups' colours."""
    colours = np.zeros(grid.ranks, dtype=np.int64)
    for rings in rings_of:
        colours = _combined(colours, rings)
    count = 0
    while int(colours.max()) + 1 > count:
        count = int(colours.max()) + 1
        if count in (1, grid.ranks):
            break
        marks = _hashed(colours)
        for members, index in zip(groups, group_of, strict=True):
            _, signature = np.unique(marks[members].sum(axis=1), return_inverse=True)
            colours = _combined(colours, signature[index])
    return colours


def _combined(colours: Ints, other: Ints) -> Ints:
    pairs = colours * (int(other.max(initial=0)) + 1) + other
    return np.asarray(np.unique(pairs, return_inverse=True)[1], dtype=np.int64)


def _hashed(colours: Ints) -> NDArray[np.uint64]:
    """A 64-bit mark per colour whose sum over a group stands for the group's multiset of colours.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    z = (colours.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
