"""Schedules played tick by tick, in which a stage runs whatever it can of what is most urgent."""

from __future__ import annotations

from topologies.session import session_cached
from workload.pipeline.slot import FORWARD, INPUT, WEIGHT, Slot


@session_cached(64)
def played(stages: int, micro_batches: int, limit: int) -> list[list[Slot]]:
    """Each stage's slots, tick by tick, with no more than `limit` micro-batches in flight."""
    order: list[list[Slot]] = [[] for _ in range(stages)]
    # done[work][s] is how many micro-batches stage s has through that work, as of the last tick
    done = {work: [0] * stages for work in (FORWARD, INPUT, WEIGHT)}
    while min(done[WEIGHT]) < micro_batches:
        before = {work: list(counts) for work, counts in done.items()}
        for s in range(stages):
            work = _next(s, stages, micro_batches, limit, before, order[s])
            if work:
                order[s].append(Slot(work, 0, done[work][s]))
                done[work][s] += 1
    return order


def _next(
    s: int,
    stages: int,
    micro_batches: int,
    limit: int,
    done: dict[str, list[int]],
    order: list[Slot],
) -> str:
    """What stage s runs next, given what all stages have done; "" if it must wait."""
    forward, backward, weight = (done[work][s] for work in (FORWARD, INPUT, WEIGHT))
    arrived = micro_batches if s == 0 else done[FORWARD][s - 1]
    returned = forward if s == stages - 1 else done[INPUT][s + 1]
    can_forward = forward < arrived and forward - weight < limit
    can_backward = backward < returned
    if can_forward and can_backward:
        last = next((slot.work for slot in reversed(order) if slot.work != WEIGHT), "")
        return FORWARD if last == INPUT else INPUT
    if can_backward:
        return INPUT
    if can_forward:
        return FORWARD
    return WEIGHT if weight < backward else ""
