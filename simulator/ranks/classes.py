"""Which ranks meet in a collective, over which ring, and which ranks behave alike.

Two ranks are of one class if for every group they are in, the ring is the same and so are the
classes of the members. The classes are the coarsest such partition, found by colour refinement; one
rank of each class is then simulated for all.

Groups of one axis share their links all the time, and a `Ring` says what each gets of them. While a
rank has collectives of several axes in flight, a `InFlight` names them, and each has another ring:
the one it would have if all ranks had all of those in flight.

Where a placement makes more classes than can be simulated, all ranks count as one class, and every
collective takes as long as its slowest group: an upper bound, for only the slowest ranks would.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.engine.ticks import to_ticks
from simulator.ranks.color_refinement import first_of_each, numbered, of_rank, refined
from workload.grid import Grid
from workload.op import Op
from workload.program import Program

Ints = NDArray[np.int64]
Axes = tuple[str, ...]
InFlight = tuple[Axes, ...]  # the axes of the collectives in flight on a rank, sorted; some twice
Candidates = tuple[
    Hashable, ...
]  # rings, the slowest of which counts: one, where classes are exact
Rings = Mapping[Axes, Sequence[tuple[Candidates, ...]]]  # by axes, each time it flies, and by class
Answer = TypeVar("Answer")
MOST_CLASSES = 64  # a second of simulation or so


class Fabric(Hashable, Protocol):
    """What connects the ranks: it knows each group's ring and how long a collective takes on it.

    `compute_share` of an overlapped collective's time is lost to its device's compute stream.
    """

    @property
    def compute_share(self) -> float:
        """See above; between 0 and 1."""
        ...

    def rings(self, together: Sequence[Ints]) -> Sequence[tuple[Sequence[Hashable], Ints]]:
        """For each of some axes, given by its groups, (groups, members), the different rings and
        each group's index, while all groups of all of them are active at once."""
        ...

    def slowest(self, rings: Sequence[Any]) -> Sequence[Hashable]:
        """Some of the rings, one of which is the slowest for any payload."""
        ...

    def seconds(self, kind: str, payload_bytes: int, ring: Any) -> float:
        """How long a collective of that kind and payload takes on that ring."""
        ...


@dataclass(frozen=True)
class ClassGroups:
    """Who meets over one set of axes: for each class its ring and its meeting, for each meeting
    the number of classes in it."""

    rings: tuple[Candidates, ...]
    meeting: tuple[int, ...]
    sizes: tuple[int, ...]

    @cached_property
    def members(self) -> list[list[int]]:
        """For each meeting its classes."""
        classes: list[list[int]] = [[] for _ in self.sizes]
        for number, meeting in enumerate(self.meeting):
            classes[meeting].append(number)
        return classes


class UnlikeRanksError(Exception):
    """Ranks of one class turn out to differ, namely while these collectives are in flight."""

    def __init__(self, flying: InFlight) -> None:
        super().__init__(f"ranks of one class differ with {flying} in flight")
        self.flying = flying


@dataclass(frozen=True)
class RankGroups:
    """All ranks of a program: `members` has every group by axes, `of` each rank's group, and
    `classes` each rank's class; `alike` if those of a class are so indeed."""

    members: Mapping[Axes, Ints]
    of: Mapping[Axes, Ints]
    classes: Ints
    alike: bool


@dataclass(frozen=True)
class RankClasses:
    """The rank classes of a program: `ranks` has one rank of each, `meetings` whom it meets.

    `stages` has the pipeline stage of each class. `known` keeps the times that were asked for,
    `crowds` the rings.
    """

    fabric: Fabric
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    meetings: Mapping[Axes, ClassGroups]
    groups: RankGroups
    known: dict[tuple[object, ...], list[int]] = field(default_factory=dict, repr=False)
    crowds: dict[InFlight, Rings] = field(default_factory=dict, repr=False)

    def ticks(self, op: Op, flying: InFlight = ()) -> list[int]:
        """How long a collective lasts once everyone is there, for each class.

        That is alone, or with all of `flying` in flight from its begin to its end, itself among
        them; others never make it faster.
        """
        key = (op.kind, op.group, op.nbytes, flying)
        if key not in self.known:
            alone = self._ticks(op, self.meetings[op.group].rings)
            if len(flying) > 1:
                if flying not in self.crowds:
                    self.crowds[flying] = self._rings(flying)
                crowded = [self._ticks(op, rings) for rings in self.crowds[flying][op.axes]]
                alone = [max(ticks) for ticks in zip(alone, *crowded, strict=True)]
            self.known[key] = alone
        return self.known[key]

    def _ticks(self, op: Op, rings: Sequence[Candidates]) -> list[int]:
        last = {
            rivals: max(to_ticks(self.fabric.seconds(op.kind, op.nbytes, ring)) for ring in rivals)
            for rivals in dict.fromkeys(rings)
        }
        return [last[rivals] for rivals in rings]

    def _rings(self, flying: InFlight) -> Rings:
        """Each class's rings with these in flight; an UnlikeRanksError if that splits a class."""
        groups, ranks = self.groups, np.array(self.ranks)
        result: dict[Axes, list[tuple[Candidates, ...]]] = {}
        found = self.fabric.rings([groups.members[axes] for axes in flying])
        for axes, (rings, index) in zip(flying, found, strict=True):
            own = of_rank(index, groups.of[axes])
            if groups.alike and not (own == own[ranks][groups.classes]).all():
                raise UnlikeRanksError(flying)
            result.setdefault(axes, []).append(
                _candidates(self.fabric, rings, own[ranks], alike=groups.alike)
            )
        return result


def _candidates(
    fabric: Fabric, rings: Sequence[Hashable], index: Ints, *, alike: bool
) -> tuple[Candidates, ...]:
    if not alike:
        return (tuple(fabric.slowest(rings)),)
    return tuple((rings[at],) for at in index.tolist())


def classes_of(
    programs: Sequence[Program],
    fabric: Fabric,
    *,
    unfold: bool = False,
    crowds: Sequence[InFlight] = (),
    also: Sequence[Axes] = (),
) -> RankClasses:
    """The network as the programs of the pipeline's stages use it; with `unfold`, every rank is a
    class of its own.

    Ranks of a class are of one stage, and alike with any of `crowds` in flight too. `also` names
    groups beyond those that the programs' ops name.
    """
    used = dict.fromkeys(op.group for p in programs for op in p.ops if op.communicates)
    used |= dict.fromkeys(also)
    return _classes_of(fabric, programs[0].plan.grid, tuple(used), tuple(crowds), unfold)


@lru_cache(maxsize=16)
def _classes_of(
    fabric: Fabric, grid: Grid, used: tuple[Axes, ...], crowds: tuple[InFlight, ...], unfold: bool
) -> RankClasses:
    groups = {axes: grid.groups(*axes) for axes in used}
    group_of = {axes: _group_of(members, grid.ranks) for axes, members in groups.items()}
    found = {axes: fabric.rings([members])[0] for axes, members in groups.items()}
    rings_of = [of_rank(found[axes][1], group_of[axes]) for axes in used]
    for flying in () if unfold else crowds:
        crowded = fabric.rings([groups[axes] for axes in flying])
        pairs = zip(flying, crowded, strict=True)
        rings_of += [of_rank(index, group_of[axes]) for axes, (_, index) in pairs]
    stage_of = grid.stages()
    colours = np.arange(grid.ranks, dtype=np.int64)
    if not unfold:
        colours = refined(stage_of, rings_of, list(groups.values()), list(group_of.values()))
    alike = unfold or int(colours.max()) < MOST_CLASSES * grid.pipe
    colours = colours if alike else stage_of
    ranks = np.sort(first_of_each(colours))
    classes = np.empty(len(ranks), dtype=np.int64)
    classes[colours[ranks]] = np.arange(len(ranks), dtype=np.int64)
    everyone = RankGroups(groups, group_of, classes[colours], alike)
    meetings = {axes: _class_groups(everyone, axes, ranks, fabric, found[axes]) for axes in used}
    stages = tuple(stage_of[ranks].tolist())
    return RankClasses(fabric, tuple(ranks.tolist()), stages, meetings, everyone)


def until_consistent(
    network: Callable[[Sequence[InFlight]], RankClasses], play: Callable[[RankClasses], Answer]
) -> Answer:
    """What is played on the network with as many rank classes as it takes: where ranks of a class
    turn out to differ, they are told apart and it is played again."""
    crowds: list[InFlight] = []
    while True:
        try:
            return play(network(crowds))
        except UnlikeRanksError as error:
            crowds.append(error.flying)


def _group_of(groups: Ints, ranks: int) -> Ints:
    """For each rank the index of its group, -1 for a rank in none."""
    index = np.full(ranks, -1, dtype=np.int64)
    index[groups] = np.arange(len(groups), dtype=np.int64)[:, None]
    return index


def _class_groups(
    groups: RankGroups,
    axes: Axes,
    ranks: Ints,
    fabric: Fabric,
    found: tuple[Sequence[Hashable], Ints],
) -> ClassGroups:
    """Classes meet if they stand together in a representative's group.

    A group's classes are the same for each of its members, so the lowest of them names the meeting.
    """
    chosen = groups.of[axes][ranks]
    members = groups.members[axes][chosen]
    lowest = groups.classes[np.where(chosen[:, None] >= 0, members, ranks[:, None])].min(axis=1)
    meeting = numbered(lowest)
    rings, ring_of_group = found
    return ClassGroups(
        _candidates(fabric, rings, ring_of_group[chosen], alike=groups.alike),
        tuple(meeting.tolist()),
        tuple(np.bincount(meeting).tolist()),
    )
