"""The error of a difference between two plans: which of some plans a prediction can tell apart.

Much of what a prediction gets wrong it gets wrong for all plans of a model on a machine alike, and
that cancels when two of them are compared. Of two published runs that differ in plan and batch
alone, let r be the logarithm of measured over predicted step of each: |r_1 - r_2| is by how much
the predicted ratio of the two misses the measured one. The error of a difference is what eight of
ten such pairs miss by less. Pairs count as runs do in `step_range.py`: the more, the more they are
like the question (a pair is as far from it as its two runs are on average), and all pairs of one
source together as much as the nearest of them. It is widened by `WIDENING`.

Two plans whose predicted steps differ by less are undecided. Where they differ by more, the order
is wrong in at most one of ten cases, as a pair misses to either side equally often.

Source: as in `step_range.py`, weighted conformal prediction (Barber et al., arXiv 2202.13415,
section 3), here of |r_1 - r_2|. The widening makes eight of ten right when the pairs of a source
are predicted from those of all others, as the mean over sources; it was chosen on pairs of dense
models. Of models with experts, whose pairs are of three sources and may differ in the release, too,
it has more of them right.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from itertools import combinations

import numpy as np

from simulator.uncertainty.ranking import Rankings, TimedPlan, rankings
from simulator.uncertainty.step_range import (
    DENSE,
    NEAR,
    SHARE,
    PublishedResiduals,
    PublishedRow,
    Run,
    published_runs,
    quantile,
    table_of,
    weights_of,
)
from topologies.records import record
from topologies.session import session_cached

WIDENING = 1.2  # PublishedPairs.widening says what is needed


@record
class DifferenceError:
    """By which share the predicted ratio of two steps may miss the measured one; `alike` of the
    pairs of published runs are near, of so many sources."""

    share: float
    alike: int
    sources: int

    def undecided(self, steps_s: Sequence[float]) -> list[int]:
        """Which of some steps cannot be told from the shortest, that one included; none where the
        shortest is decided.

        >>> DifferenceError(0.05, 0, 0).undecided([1.0, 1.04, 1.06])
        [0, 1]
        >>> DifferenceError(0.05, 0, 0).undecided([1.0, 1.06])
        []
        """
        least = min(steps_s, default=0.0)
        near = [at for at, each in enumerate(steps_s) if each < least * (1 + self.share)]
        return near if len(near) > 1 else []


class PublishedPairs:
    """Pairs of runs that differ in plan and batch alone, and in these."""

    def __init__(self, rows: Sequence[PublishedRow]) -> None:
        groups: dict[int, list[PublishedRow]] = {}
        for row in rows:
            groups.setdefault(row.question, []).append(row)
        every = (pair for own in groups.values() for pair in combinations(own, 2))
        # Runs of one plan, under several releases, say nothing of a difference between two.
        pairs = [(one, other) for one, other in every if one.plan != other.plan]
        pairs.sort(key=lambda pair: abs(pair[0].residual - pair[1].residual))
        self._misses = np.array([abs(one.residual - other.residual) for one, other in pairs])
        self._sides = [_distances_to([pair[at].run for pair in pairs]) for at in (0, 1)]
        self.sources = np.array([one.source for one, _ in pairs])
        self._number = np.asarray(np.unique(self.sources, return_inverse=True)[1], dtype=np.int64)
        self.rows = [one for one, _ in pairs]

    def error_of(self, run: Run, *, without: str = "") -> DifferenceError:
        """The error of a difference between two plans like a run, from the pairs of all sources but
        one."""
        far = np.asarray(sum(side.distances(run) for side in self._sides) / 2)
        counted = self.sources != without
        miss = quantile(self._misses, weights_of(far, self._number, counted), SHARE)
        near = (far <= NEAR) & counted
        return DifferenceError(
            math.expm1(WIDENING * miss), int(near.sum()), len(set(self.sources[near].tolist()))
        )

    def widening(self) -> float:
        """The least widening with which the errors hold for `SHARE` of the pairs of sources that
        they do not know, as the mean over sources."""
        needed: dict[str, list[float]] = {}
        error_of = cache(lambda run, source: self.error_of(run, without=source).share)
        for row, miss in zip(self.rows, self._misses.tolist(), strict=True):
            error = math.log1p(error_of(row.run, row.source)) / WIDENING
            needed.setdefault(row.source, []).append(miss / error)
        every = sorted(each for own in needed.values() for each in own)
        return next(w for w in every if _covered(needed, w) >= SHARE)


def difference_error(run: Run, *, experts: bool = False) -> DifferenceError:
    """The error of a difference between two plans like a run: from pairs of dense models, or from
    those of models with `experts`."""
    return published_pairs(table_of(experts=experts)).error_of(run)


@session_cached(2)
def published_pairs(table: str = DENSE) -> PublishedPairs:
    """The pairs of the runs that come with the package."""
    return PublishedPairs(published_runs(table))


@session_cached(2)
def published_order(*, experts: bool = False) -> Rankings:
    """How well predictions order the plans that come with the package, of dense models or of those
    with `experts`."""
    found = order_of(published_runs(table_of(experts=experts)))
    assert found is not None, "there are groups of enough runs"
    return found


def order_of(rows: Sequence[PublishedRow]) -> Rankings | None:
    """How well predictions order some rows, by the time of a sequence."""
    return rankings(
        TimedPlan(each.question, each.plan, (each.predicted_s, measured_s_of(each)))
        for each in rows
        if not math.isnan(each.predicted_s)
    )


def measured_s_of(row: PublishedRow) -> float:
    """The measured time of one sequence."""
    return row.predicted_s * math.exp(row.residual)


def _distances_to(runs: Sequence[Run]) -> PublishedResiduals:
    """Runs in their order, whose distances can be asked for."""
    return PublishedResiduals(runs, [""] * len(runs), [0.0] * len(runs))


def _covered(needed: dict[str, list[float]], widening: float) -> float:
    return statistics.fmean(
        statistics.fmean(each <= widening for each in own) for own in needed.values()
    )
