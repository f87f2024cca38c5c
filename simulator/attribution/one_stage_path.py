"""The critical path of a step of one stage by what its time goes to, for any micro-batches.

The path is walked back over the ops that were simulated. For each micro-batch that was left out,
the stretch as long as one that leads up to where further ones would be put in (`Unit.stop`) is
counted once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.attribution.breakdown import last_to_end
from simulator.attribution.critical_path import (
    Cause,
    OpPlace,
    PathPiece,
    TaskWalk,
    lists_of,
    ticks_by_cause,
)
from simulator.costs.analytic import ComputeCosts
from simulator.engine.whole_step import TimedStep, timed_step
from simulator.ranks.classes import Fabric
from workload.gpt import GPT
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan


def one_stage_causes(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> tuple[dict[Cause, int], int]:
    """Ticks along the path by what they go to, which sum to the step's, to the tick; and how many
    micro-batches were simulated for that."""
    timed = timed_step(gpt, plan, costs, fabric, forms=forms, behaviour=behaviour)
    hosts = [timed.hosts(task.number).tolist() for task in timed.tasks]
    times = lists_of(zip(timed.start, timed.end, strict=True))
    walk = TaskWalk(timed.network, timed.tasks, times, hosts)
    last = last_to_end(timed.end + timed.delay)
    path = list(walk.back((last, int(timed.end[last].argmax()))))
    ticks = ticks_by_cause(piece for _, piece in path)
    if timed.omitted:
        for cause, each in ticks_by_cause(_recurring(path, timed)).items():
            ticks[cause] += timed.omitted * each
    return ticks, timed.whole.program.plan.micro_batches


def _recurring(path: Sequence[tuple[OpPlace, PathPiece]], timed: TimedStep) -> Iterator[PathPiece]:
    """What of the path lies within as long as one micro-batch takes before the place where further
    ones would be put in."""
    at = timed.whole.graph.compute_ops.searchsorted(timed.whole.recurring.stop)
    stop = int(timed.whole.graph.compute_ops[at])
    for (number, _), piece in path:
        end = int(timed.start[number, stop])
        begin = end - int(timed.delay[number, 0]) // timed.omitted
        if piece.start_ticks < end and piece.end_ticks > begin:
            yield _within(piece, begin, end)


def _within(piece: PathPiece, begin: int, end: int) -> PathPiece:
    """The part of an op between two moments; it waits for the host first."""
    start, over = max(begin, piece.start_ticks), min(end, piece.end_ticks)
    issued = piece.start_ticks + piece.host_ticks
    host = max(0, min(issued, over) - start)
    return replace(piece, start_ticks=start, end_ticks=over, host_ticks=host)
