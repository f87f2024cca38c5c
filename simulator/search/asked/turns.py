"""Bounds of steps in which a forward and a backward pass of a stage run in turns (a2a).

No slot of such a pair has a time of its own. What the slots of a stage have on one stream still
follows one another, and a slot's message leaves when all of the slot has run. So a step takes at
least as long as all that it has on the stream of compute, without the all-to-alls that may run
beside it; and at least as long as all of these, one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.search.asked.exchanges import EXCHANGES, IN_TURNS
from simulator.search.asked.v_shape import in_v
from simulator.search.bounds.layouts import AHEAD, OWN, REST, ModelEnds
from simulator.search.bounds.part_times import ISSUED
from simulator.search.bounds.stream_bound import (
    ALONE,
    FIRST,
    INSIDE,
    BusiestStream,
    step_ticks,
)
from simulator.search.problem import SearchProblem
from topologies.records import record
from workload.op import COMPUTE
from workload.sizes.arrays import Ticks


@record(slots=False)
class OneStream(BusiestStream):
    """Slots that take as long as what they have on the stream `only`."""

    only: str = COMPUTE

    def slots(self, work: str, ends: ModelEnds, which: str = OWN, *, middle: bool = False) -> Ticks:
        """See `Slots`; all of them count as the first one's."""
        return super().slots(work, ends, which)

    def ending(self, ends: ModelEnds, behind: Ticks) -> Ticks:
        """See `Slots`; sums of gradients, which may run beside other slots, are left out."""
        layers = self.entries.of_stage(ends)
        works = (*self.entries.works, "step")
        each = [self._sum(work, layers, ends, last=True) for work in works]
        return np.asarray(sum(each) + behind)

    def longest(self, total: Mapping[str, Ticks]) -> Ticks:
        """See `BusiestStream`."""
        own = total.get(self.only, np.zeros_like(total[COMPUTE]))
        issued = total.get(ISSUED[1], own) if self.only == COMPUTE else own
        return np.asarray(np.maximum(own, issued))


def by_streams(problem: SearchProblem) -> bool:
    """Whether bounds of a problem's plans know no slots' own times."""
    return IN_TURNS in problem.of_exchanges or in_v(problem.fixed)


def least_ticks(problem: SearchProblem, busiest: BusiestStream) -> Ticks:
    """A lower bound of the step of plans of a problem, for each entry."""
    if not by_streams(problem):
        return step_ticks(busiest)
    known = busiest.part_times, busiest.entries, busiest.overlap
    streams = (COMPUTE, EXCHANGES) if IN_TURNS in problem.of_exchanges else (COMPUTE,)
    bound = _turned_ticks if in_v(problem.fixed) else step_ticks
    return np.asarray(np.maximum.reduce([bound(OneStream(*known, only)) for only in streams]))


def _turned_ticks(slots: OneStream) -> Ticks:
    """A lower bound in the shape of a V: all that the first stage has, which holds both ends of the
    model; or another one, behind the first forward slots of those above it."""
    e = slots.entries

    def stage(ends: ModelEnds) -> Ticks:
        each = sum(slots.slots(work, ends, which) for work in e.works for which in (OWN, REST))
        over = slots.ending(ends, np.zeros_like(e.pp))
        return np.asarray((e.micro_batches - 1) * each + over)

    above = slots.slots("forward", FIRST) + slots.slots("forward", INSIDE, AHEAD)
    return np.asarray(np.maximum(stage(ALONE), above + stage(INSIDE)))
