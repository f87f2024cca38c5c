"""How well predicted times order plans whose times were measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Ranking:
    """One group; `tau` is Kendall's tau-b, `regret` how much longer than the best measured plan
    the one takes that we would pick."""

    rows: int
    tau: float
    regret: float


def ranked(pairs: Sequence[tuple[float, float]]) -> Ranking:
    """The ranking of (predicted, measured) times.

    Predictions that differ by rounding alone are ties; of tied picks the mean counts.

    >>> ranked([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)])
    Ranking(rows=3, tau=0.3333333333333333, regret=0.0)
    """
    pairs = [(float(f"{p:.9g}"), m) for p, m in pairs]
    agree = ties_predicted = ties_measured = 0
    count = len(pairs) * (len(pairs) - 1) // 2
    for (p, m), (q, n) in combinations(pairs, 2):
        agree += _sign(p - q) * _sign(m - n)
        ties_predicted += p == q
        ties_measured += m == n
    scale = math.sqrt((count - ties_predicted) * (count - ties_measured))
    best = min(measured for _, measured in pairs)
    least = min(predicted for predicted, _ in pairs)
    picked = statistics.fmean(measured for predicted, measured in pairs if predicted == least)
    return Ranking(len(pairs), agree / scale if scale else 0.0, picked / best - 1)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
