"""Rank classes: ranks that provably behave alike, one of which is simulated for all.

Two ranks are of one class if in every group they belong to, the ring is the same and so are the
classes of the members. The classes are the coarsest such partition, found by colour refinement.

All groups of one axis run at once and share links; a `Ring` says what bandwidth each group gets
then. `InFlight` names the axes of all collectives that a rank has in flight, and which of them are
between all pairs (`Op.traffic`). Each of these then has another ring: the one that results if all
ranks have all of them in flight.

Where a placement makes more classes than can be simulated, all ranks of a stage count as one class,
and every collective takes as long as in its slowest group: an upper bound of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from simulator.engine.ticks import to_ticks
from simulator.ranks.color_refinement import first_of_each, numbered, of_rank, refined
from topologies.records import record
from topologies.session import session_cached
from workload.grid import Grid
from workload.op import PAIRS, Op
from workload.program import Program
from workload.sizes.arrays import Indices
from workload.structure import Structure, memoized_on
from workload.transport import Transport

Axes = tuple[str, ...]
InFlight = tuple[Axes, ...]  # the axes of the collectives in flight on a rank, sorted; some twice
Candidates = tuple[
    Hashable, ...
]  # rings, the slowest of which counts: one, where classes are exact
Rings = Mapping[
    Axes, Sequence[tuple[Candidates, ...]]
]  # by axes, as often as they are in flight, and by class
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

    @property
    def links(self) -> Hashable:
        """What its rings depend on: where it is equal, they are."""
        ...

    def rings(
        self, together: Sequence[Indices], pairs: Sequence[bool] = ()
    ) -> Sequence[tuple[Sequence[Hashable], Indices]]:
        """For each of some axes, given by its groups, (groups, members), the different rings and
        each group's index, while all groups of all of them are active at once; `pairs` says of each
        whether all members of a group send to each other, none by default."""
        ...

    def slowest(self, rings: Sequence[Any]) -> Sequence[Hashable]:
        """Some of the rings, one of which is the slowest for any payload."""
        ...

    def seconds(self, transport: Transport, payload_bytes: int, ring: Any) -> float:
        """How long a collective of that payload takes on that ring."""
        ...


class Asked(NamedTuple):
    """A collective whose duration is asked for: `in_flight` are those beside it, itself among
    them, none if it is alone."""

    transport: Transport
    axes: Axes
    nbytes: int
    in_flight: InFlight


@record(slots=False)
class ClassGroups:
    """Which rank classes form a group over one set of axes.

    By class its `rings` and the number of its group (`of_class`); `sizes` has the classes of each
    group.
    """

    rings: tuple[Candidates, ...]
    of_class: tuple[int, ...]
    sizes: tuple[int, ...]

    @cached_property
    def members(self) -> list[list[int]]:
        """The classes of each group."""
        classes: list[list[int]] = [[] for _ in self.sizes]
        for number, group in enumerate(self.of_class):
            classes[group].append(number)
        return classes


class UnlikeRanksError(Exception):
    """Ranks of one class turn out to differ, namely while these collectives are in flight."""

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(f"ranks of one class differ with {in_flight} in flight")
        self.in_flight = in_flight


@record(slots=False)
class RankGroups:
    """The groups of all ranks: `members` by axes, `of` each rank's group, `classes` each rank's
    class.

    `exact`: whether the members of a class are truly alike.
    """

    members: Mapping[Axes, Indices]
    of: Mapping[Axes, Indices]
    classes: Indices
    exact: bool


@record(slots=False)
class RankClasses:
    """The rank classes of a program: `ranks` has one rank of each, `class_groups` its groups.

    `stages` has the pipeline stage of each class. `alike` is equal for the classes of fabrics with
    equal links, which share `contended`, the rings under contention. `known` keeps durations that
    were asked for.
    """

    fabric: Fabric
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    class_groups: Mapping[Axes, ClassGroups]
    groups: RankGroups
    alike: Hashable
    known: dict[Asked, list[int]] = field(default_factory=dict, repr=False)
    contended: dict[InFlight, Rings] = field(default_factory=dict, repr=False)

    def ticks(self, op: Op, in_flight: InFlight = ()) -> list[int]:
        """How long a collective lasts once all have arrived, for each class.

        Isolated, or with all of `in_flight`, itself among them, in flight from its begin to its
        end: contention never makes it faster.
        """
        return self.ticks_of(Asked(op.transport, op.traffic, op.nbytes, in_flight))

    def ticks_of(self, asked: Asked) -> list[int]:
        """How long a collective with that transport, axes and payload lasts once all have arrived,
        for each class."""
        if asked not in self.known:
            in_flight = asked.in_flight
            alone = self._ticks(asked, self.class_groups[asked.axes].rings)
            if len(in_flight) > 1:
                if in_flight not in self.contended:
                    self.contended[in_flight] = self._rings(in_flight)
                every = self.contended[in_flight][asked.axes]
                crowded = [self._ticks(asked, rings) for rings in every]
                alone = [max(ticks) for ticks in zip(alone, *crowded, strict=True)]
            self.known[asked] = alone
        return self.known[asked]

    def _ticks(self, asked: Asked, rings: Sequence[Candidates]) -> list[int]:
        how, nbytes = asked.transport, asked.nbytes
        last = {
            candidates: max(to_ticks(self.fabric.seconds(how, nbytes, r)) for r in candidates)
            for candidates in dict.fromkeys(rings)
        }
        return [last[candidates] for candidates in rings]

    def _rings(self, in_flight: InFlight) -> Rings:
        """Each class's rings with these in flight; an UnlikeRanksError if that splits a class."""
        groups, ranks = self.groups, np.array(self.ranks)
        result: dict[Axes, list[tuple[Candidates, ...]]] = {}
        found = _rings(self.fabric, in_flight, groups.members)
        for axes, (rings, index) in zip(in_flight, found, strict=True):
            own = of_rank(index, groups.of[axes])
            if groups.exact and not (own == own[ranks][groups.classes]).all():
                raise UnlikeRanksError(in_flight)
            result.setdefault(axes, []).append(
                _candidates(self.fabric, rings, own[ranks], exact=groups.exact)
            )
        return result


def _candidates(
    fabric: Fabric, rings: Sequence[Hashable], index: Indices, *, exact: bool
) -> tuple[Candidates, ...]:
    if not exact:
        return (tuple(fabric.slowest(rings)),)
    return tuple((rings[at],) for at in index.tolist())


def classes_of(
    programs: Sequence[Program],
    fabric: Fabric,
    *,
    unfold: bool = False,
    contended: Sequence[InFlight] = (),
    also: Sequence[Axes] = (),
) -> RankClasses:
    """The rank classes of the programs of a pipeline's stages; with `unfold` each rank is a class.

    Ranks of a class are of one stage, and alike with any of `contended` in flight too. `also` names
    groups beyond those of the programs' ops.
    """
    used = dict.fromkeys(group for p in programs for group in _groups(p.outline))
    used |= dict.fromkeys(also)
    how = programs[0].plan.grid, tuple(used), tuple(contended), unfold
    return _of_fabric(fabric, *how)


@memoized_on
def _groups(outline: Structure) -> list[Axes]:
    """The groups that ops of a program meet in."""
    return list(dict.fromkeys(op.traffic for op in outline.ops if op.communicates))


def _rings(
    fabric: Fabric, together: Sequence[Axes], members: Mapping[Axes, Indices]
) -> Sequence[tuple[Sequence[Hashable], Indices]]:
    """The rings of the groups of some traffic, all of it at once."""
    return fabric.rings([members[axes] for axes in together], [PAIRS in axes for axes in together])


@session_cached(16)
def _of_fabric(
    fabric: Fabric,
    grid: Grid,
    used: tuple[Axes, ...],
    contended: tuple[InFlight, ...],
    unfold: bool,
) -> RankClasses:
    alike = _of_links(_Linked(fabric.links, fabric), grid, used, contended, unfold)
    return alike if alike.fabric is fabric else replace(alike, fabric=fabric, known={})


@record(slots=False)
class _Linked:
    """A fabric that is equal to any with equal links."""

    links: Hashable
    fabric: Fabric = field(compare=False)


@session_cached(16)
def _of_links(
    linked: _Linked,
    grid: Grid,
    used: tuple[Axes, ...],
    contended: tuple[InFlight, ...],
    unfold: bool,
) -> RankClasses:
    fabric = linked.fabric
    groups = {axes: grid.groups(*(axis for axis in axes if axis != PAIRS)) for axes in used}
    group_of = {axes: _group_of(members, grid.ranks) for axes, members in groups.items()}
    found = {axes: _rings(fabric, [axes], groups)[0] for axes in used}
    rings_of = [of_rank(found[axes][1], group_of[axes]) for axes in used]
    for in_flight in () if unfold else contended:
        crowded = _rings(fabric, in_flight, groups)
        pairs = zip(in_flight, crowded, strict=True)
        rings_of += [of_rank(index, group_of[axes]) for axes, (_, index) in pairs]
    stage_of = grid.stages()
    colours = np.arange(grid.ranks, dtype=np.int64)
    if not unfold:
        colours = refined(stage_of, rings_of, list(groups.values()), list(group_of.values()))
    exact = unfold or int(colours.max()) < MOST_CLASSES * grid.pp
    colours = colours if exact else stage_of
    ranks = np.sort(first_of_each(colours))
    classes = np.empty(len(ranks), dtype=np.int64)
    classes[colours[ranks]] = np.arange(len(ranks), dtype=np.int64)
    everyone = RankGroups(groups, group_of, classes[colours], exact)
    class_groups = {
        axes: _class_groups(everyone, axes, ranks, fabric, found[axes]) for axes in used
    }
    stages = tuple(stage_of[ranks].tolist())
    alike = linked.links, grid, used, contended, unfold
    return RankClasses(fabric, tuple(ranks.tolist()), stages, class_groups, everyone, alike)


def until_consistent(
    classes: Callable[[Sequence[InFlight]], RankClasses],
    simulated: Callable[[RankClasses], Answer],
) -> Answer:
    """Simulate with as many rank classes as it takes.

    Where ranks of a class turn out to differ under contention, the classes are refined and the
    simulation starts again.
    """
    contended: list[InFlight] = []
    while True:
        try:
            return simulated(classes(contended))
        except UnlikeRanksError as error:
            contended.append(error.in_flight)


def _group_of(groups: Indices, ranks: int) -> Indices:
    """For each rank the index of its group, -1 for a rank in none."""
    index = np.full(ranks, -1, dtype=np.int64)
    index[groups] = np.arange(len(groups), dtype=np.int64)[:, None]
    return index


def _class_groups(
    groups: RankGroups,
    axes: Axes,
    ranks: Indices,
    fabric: Fabric,
    found: tuple[Sequence[Hashable], Indices],
) -> ClassGroups:
    """Classes are in one group if they stand together in a representative's group.

    A group's classes are the same for each of its members, so the lowest of them identifies it.
    """
    chosen = groups.of[axes][ranks]
    members = groups.members[axes][chosen]
    lowest = groups.classes[np.where(chosen[:, None] >= 0, members, ranks[:, None])].min(axis=1)
    group = numbered(lowest)
    rings, ring_of_group = found
    return ClassGroups(
        _candidates(fabric, rings, ring_of_group[chosen], exact=groups.exact),
        tuple(group.tolist()),
        tuple(np.bincount(group).tolist()),
    )
