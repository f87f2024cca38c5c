"""How well predictions order the plans of one model on one machine."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.uncertainty.ranking import Rankings, TimedPlan
from simulator.uncertainty.ranking import rankings as rankings_of
from validation.published.outcome import Outcome

SAME = ("source", "machine", "gpu", "framework", "model", "gpus_total", "seq_len", "precision")


def rankings(outcomes: Sequence[Outcome], *, formula: bool = False) -> Rankings | None:
    """Over scored rows that agree in all but the plan and the batch; time counts per sequence."""
    return rankings_of(timed_plans(outcomes, formula=formula))


def timed_plans(outcomes: Sequence[Outcome], *, formula: bool = False) -> list[TimedPlan]:
    """The scored rows whose batch is known, with their times per sequence."""
    runs: list[TimedPlan] = []
    for each in outcomes:
        predicted = each.formula_s if formula else each.predicted_s
        batch = each.run.whole("global_batch_seqs")
        if each.scored and predicted and each.measured_s and batch:
            times = (predicted / batch, each.measured_s / batch)
            runs.append(TimedPlan(question_of(each), plan_of(each), times))
    return runs


def question_of(outcome: Outcome) -> tuple[str, ...]:
    """What runs agree in that differ in the plan and the batch alone."""
    return tuple(outcome.run.text(column) for column in SAME)


def plan_of(outcome: Outcome) -> str:
    """What of the same question's runs agree in that are of the same plan and batch."""
    return f"{outcome.plan or outcome.run.id} {outcome.run.whole('global_batch_seqs')}"
