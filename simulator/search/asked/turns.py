"""Bounds of steps in which a forward and a backward pass of a stage run in turns (a2a).

No slot of such a pair has a time of its own. What the slots of a stage have on one stream still
follows one another, and a slot's message leaves when all of the slot has run. So a step takes at
least as long as all that it has on the stream of compute, without the all-to-alls that may run
beside it; and at least as long as all of these, one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.search.asked.exchanges import EXCHANGES, IN_TURNS
from simulator.search.bounds.layouts import ModelEnds
from simulator.search.bounds.stream_bound import BusiestStream, step_ticks
from simulator.search.problem import SearchProblem
from workload.op import COMPUTE
from workload.sizes.arrays import Ticks


@dataclass(frozen=True)
class OneStream(BusiestStream):
    """Slots that take as long as what they have on the stream `only`."""

    only: str = COMPUTE

    def ending(self, ends: ModelEnds, behind: Ticks) -> Ticks:
        """See `Slots`; sums of gradients, which may run beside other slots, are left out."""
        layers = self.entries.of_stage(ends)
        works = (*self.entries.works, "step")
        each = [self._sum(work, layers, ends, last=True) for work in works]
        return np.asarray(sum(each) + behind)

    def longest(self, total: Mapping[str, Ticks]) -> Ticks:
        """See `BusiestStream`."""
        return total.get(self.only, np.zeros_like(total[COMPUTE]))


def least_ticks(problem: SearchProblem, busiest: BusiestStream) -> Ticks:
    """A lower bound of the step of plans of a problem, for each entry."""
    if IN_TURNS not in problem.of_exchanges:
        return step_ticks(busiest)
    known = busiest.part_times, busiest.entries, busiest.overlap
    return np.maximum(*(step_ticks(OneStream(*known, only)) for only in (COMPUTE, EXCHANGES)))
