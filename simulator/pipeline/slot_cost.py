"""Slots by themselves: each played once for all its rank classes, and what later ones wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.attribution.breakdown import parts_of
from simulator.costs.analytic import ComputeCosts
from simulator.engine.fold_proof import key_of
from simulator.engine.simulate import simulate_tasks
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
    parts: dict[str, int], role: RankTask, ends: Sequence[int], begin: int
) -> dict[str, int]:
    """With the time from the compute stream's end to that of the last op on any stream."""
    tail = max(ends) - begin - sum(parts.values())
    if tail <= 0:
        return parts
    key = key_of(role.ops[ends.index(max(ends))])
    return {**parts, key: parts.get(key, 0) + tail}


def slot_cost(cast: Sequence[RankTask], costs: ComputeCosts, network: RankClasses) -> SlotCost:
    """Play a slot by itself: it lasts until the last rank class's compute stream is through."""
    times = simulate_tasks(cast, costs, network)
    ends = ends_of_all(cast, times)
    slowest = max(range(len(cast)), key=lambda n: ends_of_all([cast[n]], [times[n]])[COMPUTE])
    parts = parts_of(cast[slowest].ops, cast[slowest].score.waits, *times[slowest], 0)
    return SlotCost(ends[COMPUTE], max(ends.values()) > ends[COMPUTE], parts)


def ends_of_all(cast: Sequence[RankTask], times: Sequence[OpTicks]) -> dict[str, int]:
    """When each stream is through on all of these, and each op; some slots have no ops."""
    ends = {COMPUTE: 0}
    for role, (_, own) in zip(cast, times, strict=True):
        for op, end in zip(role.ops, own, strict=True):
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
