"""How many measured steps fall into the ranges of their predictions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.stacks import load_stack
from simulator.uncertainty.step_range import (
    SHARE,
    PublishedResiduals,
    Run,
    gpu_names,
    published_residuals,
)
from validation.published.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of measured steps within their ranges, as the mean over sources of each one's, and
    the median of half the ranges' widths as shares of the step. `nested` is the share where not
    even the widening knows the source; `widening` would give `SHARE` over all sources."""

    share: float
    nested: float
    widening: float
    half_width: float
    sources: int

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
    assert outcome.measured_s and outcome.predicted_s
    return math.log(outcome.measured_s / outcome.predicted_s)


def coverage(outcomes: Sequence[Outcome], known: PublishedResiduals | None = None) -> Coverage:
    """That of rows which are predicted from all sources but their own."""
    known = published_residuals() if known is None else known
    needed: dict[str, list[float]] = {}
    widths = []
    for each in outcomes:
        if not each.scored or each.predicted_s is None:
            continue
        found = known.range_of(each.predicted_s, run_of(each), without=each.run.source)
        ends = [math.log(end / each.predicted_s) for end in (found.low_s, found.high_s)]
        needed.setdefault(each.run.source, []).append(
            known.widening * _share_of_range(residual_of(each), *ends)
        )
        widths.append((found.high_s - found.low_s) / 2 / each.predicted_s)
    if not needed:
        return Coverage(math.nan, math.nan, math.nan, math.nan, 0)
    nested = []
    for source, own in needed.items():
        others = {name: each for name, each in needed.items() if name != source}
        nested.append(_within(own, _for_share(others) if others else known.widening))
    return Coverage(
        statistics.fmean(_within(own, known.widening) for own in needed.values()),
        statistics.fmean(nested),
        _for_share(needed),
        statistics.median(widths),
        len(needed),
    )


def _share_of_range(residual: float, low: float, high: float) -> float:
    """How far a residual is from the prediction, as a share of the end of the range there."""
    end = low if residual < 0 else high
    return residual / end if end else math.inf


def _within(needed: Sequence[float], widening: float) -> float:
    return statistics.fmean(each <= widening for each in needed)


def _for_share(needed: Mapping[str, Sequence[float]]) -> float:
    """The least widening that covers `SHARE`, as the mean over sources."""
    every = sorted(each for own in needed.values() for each in own)
    shares = (statistics.fmean(_within(own, w) for own in needed.values()) for w in every)
    return next(w for w, share in zip(every, shares, strict=True) if share >= SHARE)
