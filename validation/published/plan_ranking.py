"""How well predictions order the plans of one model on one machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from simulator.uncertainty.ranking import ranked
from validation.published.outcome import Outcome

FEWEST = 3  # runs of a group: fewer have no order worth a figure
SAME = ("source", "machine", "gpu", "framework", "model", "gpus_total", "seq_len", "precision")

Times = tuple[float, float]  # predicted and measured seconds of a sequence


@dataclass(frozen=True, slots=True)
class Rankings:
    """The means over all groups, each of all its runs.

    `plan_tau` counts a plan that ran several times, under several releases for instance, once, with
    the median of its times; over the `plan_groups` that have enough plans then, None without one.
    """

    groups: int
    tau: float
    regret: float
    plan_groups: int = 0
    plan_tau: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "groups": self.groups,
            "kendall_tau": self.tau,
            "regret": self.regret,
            "groups_of_plans": self.plan_groups,
            "kendall_tau_of_plans": self.plan_tau,
        }


def rankings(outcomes: Sequence[Outcome], *, formula: bool = False) -> Rankings | None:
    """Over scored rows that agree in all but the plan and the batch; time counts per sequence."""
    groups: dict[tuple[str, ...], dict[str, list[Times]]] = {}
    for each in outcomes:
        predicted = each.formula_s if formula else each.predicted_s
        batch = each.run.whole("global_batch_seqs")
        if each.scored and predicted and each.measured_s and batch:
            plans = groups.setdefault(question_of(each), {})
            times = (predicted / batch, each.measured_s / batch)
            plans.setdefault(f"{each.plan or each.run.id} {batch}", []).append(times)
    enough = [plans for plans in groups.values() if sum(map(len, plans.values())) >= FEWEST]
    if not enough:
        return None
    found = [ranked([*chain.from_iterable(plans.values())]) for plans in enough]
    own = [ranked([*map(_median, plans.values())]).tau for plans in enough if len(plans) > 1]
    return Rankings(
        groups=len(found),
        tau=statistics.fmean(each.tau for each in found),
        regret=statistics.fmean(each.regret for each in found),
        plan_groups=len(own),
        plan_tau=statistics.fmean(own) if own else None,
    )


def question_of(outcome: Outcome) -> tuple[str, ...]:
    """What runs agree in that differ in the plan and the batch alone."""
    return tuple(outcome.run.text(column) for column in SAME)


def _median(times: Sequence[Times]) -> Times:
    predicted, measured = zip(*times, strict=True)
    return statistics.median(predicted), statistics.median(measured)
