"""When a training run is done: its expected time by formulas, and the ends of drawn lives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.goodput.closed_form import (
    best_interval_s,
    daly_interval_s,
    expected_s,
    young_interval_s,
)
from simulator.goodput.draws import Diary, Lives, Reals, chances_of, draw_lives, tell
from simulator.goodput.job import Run
from topologies.records import record

LOW, MIDDLE, HIGH = 10, 50, 90  # percentiles of the answer
NORMAL_P90 = 1.2815515655446004  # the ninetieth percentile of a normal distribution
MOST_SAVES = 50_000  # of a life that is told event by event


@record
class StepSpread:
    """How far a run's mean step may be from the predicted one: from `low` to `high` in eight of ten
    cases, as shares of it. Each side is half of a log-normal distribution around the prediction,
    or around the middle of the range where the prediction is outside."""

    low: float
    high: float

    def draws(self, random: np.random.Generator, count: int) -> Reals:
        """So many means, over the predicted one."""
        inside = self.low <= 1 <= self.high
        centre = 1.0 if inside else math.sqrt(self.low * self.high)
        normal = random.standard_normal(count) / NORMAL_P90
        side = np.where(normal < 0, math.log(centre / self.low), math.log(self.high / centre))
        found: Reals = centre * np.exp(normal * side)
        return found


@record(slots=False)
class Forecast:
    """The run, its expected seconds, its drawn lives, and the intervals between saves that the
    formulas hold for the best; `seed` is the one that the lives were drawn with."""

    run: Run
    expected_s: float
    lives: Lives
    best_interval_s: float
    seed: int

    def percentile_s(self, percent: float) -> float:
        """The time in which so many of a hundred runs are done."""
        return float(np.percentile(self.lives.total_s, percent))

    def effective(self, percent: float) -> float:
        """The effective share that so many of a hundred runs stay below."""
        return float(np.percentile(self.lives.effective_shares, percent))

    def diary(self) -> Diary | None:
        """The life of the draw that ends in the middle, event by event; none where it would have
        too many saves to tell."""
        if self.run.work_s / self.run.interval_s > MOST_SAVES:
            return None
        totals = self.lives.total_s
        draw = int(np.argsort(totals, kind="stable")[len(totals) // 2])
        chances = (each[:, draw] for each in chances_of(self.run, self.seed, len(totals)))
        return tell(self.run, float(self.lives.work_s[draw]), chances)

    def as_dict(self) -> dict[str, Any]:
        """The forecast as it stands in JSON."""
        return {
            "work_s": self.run.work_s,
            "expected_s": self.expected_s,
            "low_s": self.percentile_s(LOW),
            "median_s": self.percentile_s(MIDDLE),
            "high_s": self.percentile_s(HIGH),
            "effective_share": self.lives.shares["training"],
            "low_effective_share": self.effective(LOW),
            "high_effective_share": self.effective(HIGH),
            "failures": float(self.lives.failures.mean()),
            "shares": self.lives.shares,
            "draws": len(self.lives.total_s),
            "seed": self.seed,
            "interval": {
                "interval_s": self.run.interval_s,
                "best_s": self.best_interval_s,
                "young_s": _finite(young_interval_s(self.run)),
                "daly_s": _finite(daly_interval_s(self.run)),
            },
        }


def forecast(
    run: Run, spreads: Sequence[StepSpread], *, least_interval_s: float, draws: int, seed: int
) -> Forecast:
    """The forecast of a run from so many lives, whose mean steps differ by the spreads."""
    random = np.random.default_rng([seed, 1])  # another stream than that of the failures
    factors = np.ones(draws)
    for spread in spreads:
        factors *= spread.draws(random, draws)
    return Forecast(
        run=run,
        expected_s=expected_s(run),
        lives=draw_lives(run, run.work_s * factors, seed),
        best_interval_s=best_interval_s(run, least_interval_s),
        seed=seed,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
