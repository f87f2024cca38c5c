"""How well predictions order the plans of one model on one machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.uncertainty.ranking import ranked
from validation.published.outcome import Outcome

FEWEST = 3  # plans of a group: fewer have no order worth a figure
SAME = ("source", "machine", "gpu", "framework", "model", "gpus_total", "seq_len", "precision")


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
            groups.setdefault(question_of(each), []).append(
                (predicted / batch, each.measured_s / batch)
            )
    found = [ranked(pairs) for pairs in groups.values() if len(pairs) >= FEWEST]
    if not found:
        return None
    tau = statistics.fmean(each.tau for each in found)
    return Rankings(len(found), tau, statistics.fmean(each.regret for each in found))


def question_of(outcome: Outcome) -> tuple[str, ...]:
    """What runs agree in that differ in the plan and the batch alone."""
    return tuple(outcome.run.text(column) for column in SAME)
