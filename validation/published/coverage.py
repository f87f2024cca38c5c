"""How many measured steps fall into the ranges of their predictions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from simulator.stacks import load_stack
from simulator.uncertainty.step_range import (
    SHARE,
    PublishedResiduals,
    Run,
    gpu_names,
    published_residuals,
)
from topologies.records import record
from validation.published.outcome import Outcome

BINS = (0.0, 0.5, 1.0, 1.5, math.inf)  # of distances (step_range.py)
MISSED = 2 / (1 - SHARE)  # penalty of a distance outside, relative to width


@record
class RangedRow:
    """A row whose range comes from all sources but its own: the logarithms of measured, lower and
    upper end over predicted, and the distance to the nearest run of these sources."""

    source: str
    residual: float
    low: float
    high: float
    apart: float

    @property
    def needed(self) -> float:
        """How far the residual is from the prediction, as a share of the end of the range there."""
        end = self.low if self.residual < 0 else self.high
        return self.residual / end if end else math.inf

    @property
    def within(self) -> bool:
        """Whether the measured step lies in the range."""
        return self.low <= self.residual <= self.high

    @property
    def half_width(self) -> float:
        """Half the range's width, as a share of the step."""
        return (math.exp(self.high) - math.exp(self.low)) / 2

    @property
    def interval_score(self) -> float:
        """The range's width plus `MISSED` times the distance of the residual outside it, in
        logarithms; less is better (Gneiting and Raftery, Strictly proper scoring rules, JASA 102,
        2007, section 6.2)."""
        outside = max(self.low - self.residual, self.residual - self.high, 0.0)
        return self.high - self.low + MISSED * outside


@record
class AtDistance:
    """Rows that lie from `least` to below `most` from the nearest run of other sources: how many of
    how many sources, the mean over sources of the share within, and the median half-width."""

    least: float
    most: float
    rows: int
    sources: int
    share: float
    half_width: float


@record
class Coverage:
    """The share of measured steps within their ranges, as the mean over sources of each one's, and
    the median of half the ranges' widths as shares of the step. `nested` is the share where not
    even the widening knows the source; `widening` would give `SHARE` over all sources.
    `interval_score` is the mean over sources; `by_distance` has what is not empty of `BINS`."""

    share: float
    nested: float
    widening: float
    half_width: float
    sources: int
    interval_score: float = math.nan
    by_distance: tuple[AtDistance, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON, without what is not known."""
        found = asdict(self)
        return {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in found.items()
        }


def run_of(outcome: Outcome) -> Run:
    """A row as a run."""
    gpu, family = gpu_names(outcome.run.text("gpu"))
    stack = load_stack(outcome.stack)
    degrees = [outcome.run.whole(key) or 1 for key in ("tp", "gx", "gy", "pp")]
    devices = outcome.run.whole("gpus_total") or 1
    return Run(stack.name, stack.family, gpu, family, devices, max(degrees[:3]) > 1, degrees[3] > 1)


def residual_of(outcome: Outcome) -> float:
    """The logarithm of measured over predicted."""
    assert outcome.measured_s
    assert outcome.predicted_s
    return math.log(outcome.measured_s / outcome.predicted_s)


def coverage(outcomes: Sequence[Outcome], known: PublishedResiduals | None = None) -> Coverage:
    """That of rows which are predicted from all sources but their own."""
    known = published_residuals() if known is None else known
    rows = ranged_rows(outcomes, known)
    if not rows:
        return Coverage(math.nan, math.nan, math.nan, math.nan, 0)
    needed = {
        source: [known.widening * each.needed for each in own]
        for source, own in _by_source(rows).items()
    }
    nested = []
    for source, own in needed.items():
        others = {name: each for name, each in needed.items() if name != source}
        nested.append(_within(own, _for_share(others) if others else known.widening))
    return Coverage(
        statistics.fmean(_within(own, known.widening) for own in needed.values()),
        statistics.fmean(nested),
        _for_share(needed),
        statistics.median(each.half_width for each in rows),
        len(needed),
        _mean_of_sources(rows, lambda each: each.interval_score),
        tuple(_by_distance(rows)),
    )


def ranged_rows(outcomes: Sequence[Outcome], known: PublishedResiduals) -> list[RangedRow]:
    """Scored rows with the ranges that all sources but their own give."""
    found = []
    for each in outcomes:
        if each.scored and each.predicted_s is not None:
            run, source = run_of(each), each.run.source
            within = known.range_of(each.predicted_s, run, without=source)
            low, high = (math.log(end / each.predicted_s) for end in (within.low_s, within.high_s))
            apart = known.apart(run, without=source)
            found.append(RangedRow(source, residual_of(each), low, high, apart))
    return found


def _by_distance(rows: Sequence[RangedRow]) -> Iterator[AtDistance]:
    for least, most in pairwise(BINS):
        own = [each for each in rows if least <= each.apart < most]
        if own:
            share = _mean_of_sources(own, lambda each: each.within)
            half_width = statistics.median(each.half_width for each in own)
            yield AtDistance(least, most, len(own), len(_by_source(own)), share, half_width)


def _by_source(rows: Sequence[RangedRow]) -> dict[str, list[RangedRow]]:
    found: dict[str, list[RangedRow]] = {}
    for each in rows:
        found.setdefault(each.source, []).append(each)
    return found


def _mean_of_sources(rows: Sequence[RangedRow], measure: Callable[[RangedRow], float]) -> float:
    return statistics.fmean(
        statistics.fmean(map(measure, own)) for own in _by_source(rows).values()
    )


def _within(needed: Sequence[float], widening: float) -> float:
    return statistics.fmean(each <= widening for each in needed)


def _for_share(needed: Mapping[str, Sequence[float]]) -> float:
    """The least widening that covers `SHARE`, as the mean over sources."""
    every = sorted(each for own in needed.values() for each in own)
    shares = (statistics.fmean(_within(own, w) for own in needed.values()) for w in every)
    return next(w for w, share in zip(every, shares, strict=True) if share >= SHARE)
