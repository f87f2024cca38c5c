"""Slots by themselves: each played once for all its rank classes, and what later ones wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.actors import Performance, Role
from simulator.breakdown import parts_of
from simulator.costs import ComputeCosts
from simulator.network import Network
from simulator.pipeline.blocks import Kind
from simulator.play import perform
from simulator.steady import key_of
from workload.op import COMPUTE, Op


@dataclass(frozen=True, slots=True)
class Block:
    """A slot's time, whether another stream is busy for longer, and where the time goes."""

    ticks: int
    has_tails: bool
    parts: dict[str, int]


def with_tail(parts: dict[str, int], role: Role, ends: Sequence[int], begin: int) -> dict[str, int]:
    """With the time from the compute stream's end to that of the last op on any stream."""
    tail = max(ends) - begin - sum(parts.values())
    if tail <= 0:
        return parts
    key = key_of(role.ops[ends.index(max(ends))])
    return {**parts, key: parts.get(key, 0) + tail}


def played_alone(cast: Sequence[Role], costs: ComputeCosts, network: Network) -> Block:
    """Play a slot by itself: it lasts until the last rank class's compute stream is through."""
    times = perform(cast, costs, network)
    ends = ends_of_all(cast, times)
    slowest = max(range(len(cast)), key=lambda n: ends_of_all([cast[n]], [times[n]])[COMPUTE])
    parts = parts_of(cast[slowest].ops, cast[slowest].score.waits, *times[slowest], 0)
    return Block(ends[COMPUTE], max(ends.values()) > ends[COMPUTE], parts)


def ends_of_all(cast: Sequence[Role], times: Sequence[Performance]) -> dict[str, int]:
    """When each stream is through on all of these, and each op; some slots have no ops."""
    ends = {COMPUTE: 0}
    for role, (_, own) in zip(cast, times, strict=True):
        for op, end in zip(role.ops, own, strict=True):
            for key in (op.stream, op.name):
                ends[key] = max(end, ends.get(key, 0))
    return ends


def floors_of(
    kind: Kind, ops: Sequence[Op], begin: int, known: Mapping[str, int]
) -> dict[int, int]:
    """Each op no sooner than `begin`, nor than its stream is free and what it waits for of earlier
    slots is over."""
    return {
        n: max(begin, *(known.get(key, 0) for key in (op.stream, *kind.awaited(op))))
        for n, op in enumerate(ops)
    }
