"""How well predicted times order plans whose times were measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

from topologies.records import record

FEWEST = 3  # runs of a group: fewer have no order worth a figure
Times = tuple[float, float]  # predicted and measured seconds of a sequence


@record
class Ranking:
    """One group; `tau` is Kendall's tau-b, `regret` how much longer than the best measured plan
    the one takes that we would pick."""

    rows: int
    tau: float
    regret: float


class TimedPlan(NamedTuple):
    """A run of a plan: those of one question differ in the plan and the batch alone, those of one
    plan in neither."""

    question: Hashable
    plan: Hashable
    times: Times


@record
class Rankings:
    """The means over all groups, each of all its runs.

    `plan_tau` and `plan_regret` count a plan that ran several times, under several releases for
    instance, once, with the median of its times; over the `plan_groups` that have several plans
    then, None without one; these have so many `plans`.
    """

    groups: int
    tau: float
    regret: float
    plan_groups: int = 0
    plan_tau: float | None = None
    plan_regret: float | None = None
    plans: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "groups": self.groups,
            "kendall_tau": self.tau,
            "regret": self.regret,
            "groups_of_plans": self.plan_groups,
            "kendall_tau_of_plans": self.plan_tau,
            "regret_of_plans": self.plan_regret,
            "plans": self.plans,
        }


def rankings(runs: Iterable[TimedPlan]) -> Rankings | None:
    """Of runs in groups with the same question; None where no group has enough of them."""
    groups: dict[Hashable, dict[Hashable, list[Times]]] = {}
    for each in runs:
        groups.setdefault(each.question, {}).setdefault(each.plan, []).append(each.times)
    enough = [plans for plans in groups.values() if sum(map(len, plans.values())) >= FEWEST]
    if not enough:
        return None
    found = [ranked([*chain.from_iterable(plans.values())]) for plans in enough]
    own = [ranked([*map(_median, plans.values())]) for plans in enough if len(plans) > 1]
    return Rankings(
        groups=len(found),
        tau=statistics.fmean(each.tau for each in found),
        regret=statistics.fmean(each.regret for each in found),
        plan_groups=len(own),
        plan_tau=statistics.fmean(each.tau for each in own) if own else None,
        plan_regret=statistics.fmean(each.regret for each in own) if own else None,
        plans=sum(each.rows for each in own),
    )


def ranked(pairs: Sequence[Times]) -> Ranking:
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


def _median(times: Sequence[Times]) -> Times:
    predicted, measured = zip(*times, strict=True)
    return statistics.median(predicted), statistics.median(measured)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
