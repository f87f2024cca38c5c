"""How well predictions order the plans of one model on one machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from validation.published.outcome import Outcome

FEWEST = 3  # plans of a group: fewer have no order worth a figure
SAME = ("source", "machine", "gpu", "framework", "model", "gpus_total", "seq_len", "precision")


@dataclass(frozen=True, slots=True)
class Ranking:
    """One group; `tau` is Kendall's tau-b, `regret` how much longer than the best measured plan
    the one takes that we would pick."""

    rows: int
    tau: float
    regret: float


@dataclass(frozen=True, slots=True)
class Rankings:
    """The means over all groups."""

    groups: int
    tau: float
    regret: float

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {"groups": self.groups, "kendall_tau": self.tau, "regret": self.regret}


def rankings(outcomes: Sequence[Outcome], *, formula: bool = False) -> Rankings | None:
    """Over scored rows that agree in all but the plan and the batch; time counts per sequence."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for each in outcomes:
        predicted = each.formula_s if formula else each.predicted_s
        batch = each.run.whole("global_batch_seqs")
        if each.scored and predicted and each.measured_s and batch:
            key = tuple(each.run.text(column) for column in SAME)
            groups.setdefault(key, []).append((predicted / batch, each.measured_s / batch))
    found = [ranked(pairs) for pairs in groups.values() if len(pairs) >= FEWEST]
    if not found:
        return None
    tau = statistics.fmean(each.tau for each in found)
    return Rankings(len(found), tau, statistics.fmean(each.regret for each in found))


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
