"""The cost of a slot simulated alone, and the ends of its ops for which later slots wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulator.attribution.breakdown import compute_stream
from simulator.engine.streams import RankTask
from simulator.pipeline.slot_ops import StageKind
from simulator.ranks.classes import RankClasses
from workload.op import Op
from workload.sizes.arrays import Ticks


@dataclass(frozen=True, slots=True)
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


def ends_of_all(tasks: Sequence[RankTask], times: Sequence[tuple[Ticks, Ticks]]) -> dict[str, int]:
    """When each stream is through on all of these, and each op."""
    ends: dict[str, int] = {}
    for task, (_, own) in zip(tasks, times, strict=True):
        for op, end in zip(task.graph.ops, own.tolist(), strict=True):
            for key in (op.stream, op.name):
                ends[key] = max(end, ends.get(key, 0))
    return ends


def floors_of(
    kind: StageKind, ops: Sequence[Op], begin: int, known: Mapping[str, int]
) -> dict[int, int]:
    """Each op no sooner than `begin`, nor than its stream is free and what it waits for of earlier
    slots is over."""
    if not known:
        return dict.fromkeys(range(len(ops)), begin)
    return {
        n: max(begin, *(known.get(key, 0) for key in (op.stream, *kind.awaited(op))))
        for n, op in enumerate(ops)
    }


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
