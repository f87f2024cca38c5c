"""The cost of a slot simulated alone, and the ends of its ops for which later slots wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.attribution.breakdown import parts_of
from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import KnownDurations, simulate_tasks
from simulator.engine.streams import OpTicks, RankTask
from simulator.pipeline.slot_ops import StageKind
from simulator.ranks.classes import RankClasses
from workload.op import COMPUTE, Op


@dataclass(frozen=True, slots=True)
class SlotCost:
    """A slot's time, whether another stream is busy for longer, and where the time goes."""

    ticks: int
    has_tails: bool
    parts: dict[str, int]


def with_tail(
    parts: dict[str, int], task: RankTask, ends: Sequence[int], begin: int
) -> dict[str, int]:
    """With the time from the compute stream's end to that of the last op on any stream."""
    tail = max(ends) - begin - sum(parts.values())
    if tail <= 0:
        return parts
    key = task.ops[ends.index(max(ends))].time_key
    return {**parts, key: parts.get(key, 0) + tail}


def slot_cost(
    tasks: Sequence[RankTask], costs: ComputeCosts, network: RankClasses, known: KnownDurations
) -> SlotCost:
    """Simulate a slot alone: it ends with the last rank class's compute stream."""
    times = simulate_tasks(tasks, costs, network, known)
    ends = ends_of_all(tasks, times)
    slowest = max(range(len(tasks)), key=lambda n: ends_of_all([tasks[n]], [times[n]])[COMPUTE])
    parts = parts_of(tasks[slowest].ops, tasks[slowest].graph.waits, *times[slowest], 0)
    return SlotCost(ends[COMPUTE], max(ends.values()) > ends[COMPUTE], parts)


def ends_of_all(tasks: Sequence[RankTask], times: Sequence[OpTicks]) -> dict[str, int]:
    """When each stream is through on all of these, and each op; some slots have no ops."""
    ends = {COMPUTE: 0}
    for task, (_, own) in zip(tasks, times, strict=True):
        for op, end in zip(task.ops, own, strict=True):
            for key in (op.stream, op.name):
                ends[key] = max(end, ends.get(key, 0))
    return ends


def floors_of(
    kind: StageKind, ops: Sequence[Op], begin: int, known: Mapping[str, int]
) -> dict[int, int]:
    """Each op no sooner than `begin`, nor than its stream is free and what it waits for of earlier
    slots is over."""
    return {
        n: max(begin, *(known.get(key, 0) for key in (op.stream, *kind.awaited(op))))
        for n, op in enumerate(ops)
    }
