"""A step of one stage on every rank: its ops, with the micro-batches that the simulation left out.

The simulation of rank classes leaves out micro-batches that repeat (`engine/steady_state.py`). Here
each of them is executed, with noise of its own: the ops up to the place where units are put in,
then the unit once more for each micro-batch left out, then the rest. From the second unit on, ops
wait only for what is at most one unit further back: the simulation proves that nothing else makes
them wait without noise. With noise it might, by a whole micro-batch's time: that is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from simulator.engine.whole_step import TimedStep
from simulator.noise.clocks import OpStep, RankClocks, Wait, Waited, finished, op_steps
from simulator.noise.noise import Draw
from simulator.noise.played import Played
from simulator.noise.stage_ranks import StageRanks
from topologies.records import record
from workload.op import COMPUTE

Stretches = tuple[Sequence[OpStep], Sequence[OpStep], Sequence[OpStep]]


@record(slots=False)
class OneStage:
    """A simulated step, as all ranks execute it."""

    timed: TimedStep

    @cached_property
    def ranks(self) -> StageRanks:
        """All ranks."""
        grid = self.timed.whole.program.plan.grid
        return StageRanks.of(self.timed.network, grid, 0)

    @property
    def ops(self) -> int:
        """The ops that each rank executes."""
        before, unit, behind = self._stretches
        return len(before) + self.timed.omitted * len(unit) + len(behind)

    @property
    def devices(self) -> Sequence[int]:
        """One rank of each class."""
        return self.timed.network.ranks

    def play(self, draw: Draw) -> Played:
        """Execute the step for some samples."""
        waited = Waited()
        count = len(draw.samples)
        clocks = RankClocks(self.ranks, np.zeros((count, len(self.ranks.ranks))), waited)
        for number, steps in enumerate(self._in_order()):
            own = draw.on(self.ranks.ranks, 0, number, len(steps))
            finished(clocks.execute(steps, own))
        return Played.of(clocks.last, [clocks.stream(COMPUTE)], waited)

    def _in_order(self) -> Iterator[Sequence[OpStep]]:
        before, unit, behind = self._stretches
        yield before
        for _ in range(self.timed.omitted):
            yield unit
        yield behind

    @cached_property
    def _stretches(self) -> Stretches:
        """The ops before the place where units are put in, the unit, and the ops behind."""
        timed = self.timed
        graph, ticks = timed.whole.graph, timed.end - timed.start
        whole = op_steps(graph, ticks)
        if not timed.omitted:
            return whole, (), ()
        unit = timed.whole.recurring
        near = op_steps(graph, ticks, unit.length)
        reach = [max(step.reach, other.reach) for step, other in zip(whole, near, strict=True)]
        steps = [*whole[: unit.copied.start], *near[unit.copied.start :]]
        steps = [replace(step, reach=own) for step, own in zip(steps, reach, strict=True)]
        pairs = zip(steps[unit.copied], steps[unit.stop : unit.stop + unit.length], strict=True)
        copied = [replace(step, waits=_recurring(step, later)) for step, later in pairs]
        return steps[: unit.stop], copied, steps[unit.stop :]


def _recurring(step: OpStep, later: OpStep) -> tuple[Wait, ...]:
    """Of the waits of an op those that its copy of a unit later has too, and so every copy."""
    return tuple(wait for wait in step.waits if wait in later.waits)
