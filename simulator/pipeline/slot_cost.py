"""The cost of a slot simulated alone, and the ends of its ops for which later slots wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.attribution.breakdown import compute_stream
from simulator.engine.streams import RankTask
from simulator.pipeline.slot_ops import SlotOps, StageKind
from simulator.ranks.classes import RankClasses
from topologies.records import record
from workload.sizes.arrays import Ticks


@record
class SlotCost:
    """A slot's time, whether another stream is busy for longer, and where the time goes."""

    ticks: int
    has_tails: bool
    parts: dict[str, int]


def slot_cost(
    tasks: Sequence[RankTask],
    times: Sequence[tuple[Ticks, Ticks]],
    hosts: Callable[[RankTask], Ticks],
) -> SlotCost:
    """The cost of a slot that was simulated alone: it ends with the last rank class's compute.
    `hosts` has by op of a task for how many ticks it waits for the host."""
    slowest, ticks = slowest_of(tasks, times)
    over = max(int(end.max(initial=0)) for _, end in times)
    parts = compute_stream(tasks[slowest].graph, *times[slowest], hosts(tasks[slowest]))
    return SlotCost(ticks, over > ticks, parts)


def slowest_of(tasks: Sequence[RankTask], times: Sequence[tuple[Ticks, Ticks]]) -> tuple[int, int]:
    """The task whose compute ends last, by its place, and when that is."""
    pairs = zip(tasks, times, strict=True)
    ends = [int(end[task.graph.compute_ops].max(initial=0)) for task, (_, end) in pairs]
    return ends.index(max(ends)), max(ends)


class LateSlot(NamedTuple):
    """A slot of a stage, at its place in the order, that leaves other streams busy: its tasks and
    their times as they are in the step."""

    place: int
    part: SlotOps
    tasks: Sequence[RankTask]
    times: Sequence[tuple[Ticks, Ticks]]


class EarlierEnds:
    """The `slots` of a stage that leave other streams busy, and when their ops and streams end, for
    which later slots wait."""

    def __init__(self, kind: StageKind) -> None:
        self._kind = kind
        self.slots: list[LateSlot] = []
        self._ops = np.zeros(kind.columns.count, dtype=np.int64)
        self._streams: dict[str, int] = {}

    def note(self, slot: LateSlot) -> None:
        """Take up when the ops of a slot ended on all rank classes."""
        self.slots.append(slot)
        graph, end = slot.part.graph, np.max([own for _, own in slot.times], axis=0)
        np.maximum.at(self._ops, self._kind.places_in_program(slot.part), end)
        for number, stream in enumerate(graph.columns.sorts.streams):
            last = int(end[graph.stream == number].max(initial=0))
            self._streams[stream] = max(last, self._streams.get(stream, 0))

    def floors(self, part: SlotOps, begin: int) -> Ticks:
        """When the ops of a part start at the earliest: none before `begin`, and each once its
        stream is free and what it waits for of earlier slots is over."""
        graph = part.graph
        floors = np.full(len(graph.places), begin, dtype=np.int64)
        if not self._streams:
            return floors
        ends = [self._streams.get(stream, 0) for stream in graph.columns.sorts.streams]
        own = self._kind.waits.of_some(self._kind.places_in_program(part))
        owner = np.repeat(np.arange(len(floors)), np.diff(own.offsets))
        np.maximum.at(floors, owner, self._ops[own.places])
        return np.maximum(floors, np.array(ends, dtype=np.int64)[graph.stream])

    def until(
        self, part: SlotOps, index: int, ticks: int, before: int
    ) -> tuple[LateSlot, tuple[int, int]] | None:
        """An op of a slot earlier than the place `before` that an op of a part follows, and that
        ends then: its slot, task and index there. None if there is no such."""
        stream = part.graph.op(index).stream
        awaited = self._kind.waits.of_one(int(self._kind.places_in_program(part)[index]))
        for slot in reversed([slot for slot in self.slots if slot.place < before]):
            graph = slot.part.graph
            streams = np.array([name == stream for name in graph.columns.sorts.streams])
            waited = np.isin(self._kind.places_in_program(slot.part), awaited)
            for number, (_, end) in enumerate(slot.times):
                found = np.flatnonzero((waited | streams[graph.stream]) & (end == ticks))
                if len(found):
                    return slot, (number, int(found[-1]))
        return None


def meetings_of(classes: Sequence[int], network: RankClasses) -> tuple[object, ...]:
    """Who of some rank classes meets whom and on which rings, alone and with all in flight that was
    so far: equal for stages on which a slot costs as much."""
    found: list[object] = []
    for axes, groups in network.class_groups.items():
        own = [groups.of_class[number] for number in classes]
        rings_alone = tuple(groups.rings[number] for number in classes)
        found.append((axes, tuple(own.index(group) for group in own), rings_alone))
    for in_flight, rings in network.contended.items():
        for axes, every in rings.items():
            own_rings = tuple(tuple(each[n] for n in classes) for each in every)
            found.append((in_flight, axes, own_rings))
    return tuple(found)
