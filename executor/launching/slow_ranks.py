"""A rank that computes longer than others of its stage, named while the run goes on.

All ranks' steps take the same time, for they wait for each other; so what is compared is the time
in a rank's own compute ops. It is taken from a few steps of every many, as a trace is, and
exchanged once for these. Ranks of one stage have equal ops; those of other stages are not compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from executor.rank_context import RankContext
from workload.timeline import Timeline

PERIOD = 50  # steps
WINDOW = (3, 4, 5)  # of a period, the first being 1: the least of them is free of chance delays
FACTOR = 1.5  # above the median: calls a rank slow
LEAST_S = 0.02  # above the median: less is within what a host's scheduler does to a step


class SlowRanks:
    """What looks for slow ranks of one run, in step with the others' own."""

    def __init__(self, at: RankContext, done: int, note: Callable[[str], None]) -> None:
        self._at, self._done, self._note = at, done, note
        self._least_s = 0.0
        stages = at.grid.stages()
        self._stages = [[r for r in range(at.grid.ranks) if stages[r] == s] for s in set(stages)]
        self._compares = at.grid.ranks > at.grid.pp

    def wants(self, step: int) -> bool:
        """Whether to record a step."""
        return self._compares and (step - self._done) % PERIOD in WINDOW

    def look(self, step: int, timeline: Timeline) -> None:
        """Take a recorded step, if it is one of those; at the end of a window say which ranks were
        slow, on rank 0."""
        if not self.wants(step):
            return
        place = (step - self._done) % PERIOD
        mine_s = compute_s(timeline)
        self._least_s = mine_s if place == WINDOW[0] else min(self._least_s, mine_s)
        if place != WINDOW[-1]:
            return
        own = torch.tensor([self._least_s], dtype=torch.float64, device=self._at.device)
        everyone = [torch.empty_like(own) for _ in range(self._at.grid.ranks)]
        dist.all_gather(everyone, own)
        if not self._at.rank:
            times_s = [float(each) for each in everyone]
            for ranks in self._stages:
                for words in slow_among({rank: times_s[rank] for rank in ranks}):
                    self._note(words)


def compute_s(timeline: Timeline) -> float:
    """Seconds in compute ops of one step."""
    return sum(span.end_s - span.start_s for span in timeline.spans if not span.op.communicates)


def slow_among(times_s: Mapping[int, float]) -> Sequence[str]:
    """A sentence for each rank that takes much longer than the median of its equals; of an even
    number the lower median, so that of two ranks the slower one shows.

    >>> slow_among({0: 0.1, 1: 0.1, 2: 0.12, 3: 0.16})
    ['rank 3 takes 1.6 times the median']
    """
    median_s = statistics.median_low(times_s.values())
    return [
        f"rank {rank} takes {each_s / median_s:.1f} times the median"
        for rank, each_s in times_s.items()
        if each_s > FACTOR * median_s and each_s - median_s > LEAST_S
    ]
