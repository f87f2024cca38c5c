"""The whole comparison: every row, and its errors by source and machine beside the baselines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.search import best_plan
from simulator.uncertainty.ranking import Rankings
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.placement import scheduler
from topologies.records import record
from validation.published.baselines import (
    Reached,
    calibrated,
    ideal_of,
    mean_error,
    with_formula,
)
from validation.published.case import case_as_read
from validation.published.coverage import Coverage, coverage
from validation.published.error_attribution import with_anatomy
from validation.published.measured_step import measured_s, unscored
from validation.published.outcome import Ideal, Outcome
from validation.published.plan_ranking import rankings, timed_plans
from validation.published.predicting import predict_runs
from validation.published.run_machine import machine_of
from validation.published.runs import RUNS, PublishedRun, RunsError, read_runs
from validation.published.scores import PairOrder, pair_order, source_errors, weighted_error
from workload.gpt import GPT
from workload.plan import Plan


@record
class ErrorScore:
    """Errors of some rows: blind and calibrated ours, and the formula's. None without a row."""

    rows: int
    unpredicted: int
    mape: float | None
    median_error: float | None
    bias: float | None
    worst: Outcome | None
    calibrated_mape: float | None
    formula_mape: float | None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "rows": self.rows,
            "unpredicted": self.unpredicted,
            "mape": self.mape,
            "median_error": self.median_error,
            "bias": self.bias,
            "worst": None if self.worst is None else self.worst.error,
            "worst_id": None if self.worst is None else self.worst.run.id,
            "calibrated_mape": self.calibrated_mape,
            "formula_mape": self.formula_mape,
        }


@record
class Comparison:
    """Outcomes in the file's order. `ranking` and `formula_ranking` are None without a group."""

    outcomes: tuple[Outcome, ...]
    ranking: Rankings | None
    formula_ranking: Rankings | None

    @property
    def weighted_error(self) -> float | None:
        """The mean over sources of |ln(predicted / measured)|, weighed by the root of the rows."""
        return weighted_error(source_errors(self.outcomes))

    @property
    def pair_order(self) -> PairOrder | None:
        """How many pairs of plans that differ by 5 to 20 % are in the right order."""
        return pair_order(timed_plans(self.outcomes))

    @property
    def all(self) -> ErrorScore:
        """Over all scored rows."""
        return error_score(self.outcomes)

    @property
    def developed(self) -> ErrorScore:
        """Over those that may be looked at while developing."""
        return error_score([each for each in self.outcomes if not each.held_out])

    @property
    def held_out(self) -> ErrorScore:
        """Over the tenth that may not."""
        return error_score([each for each in self.outcomes if each.held_out])

    def by(self, column: str) -> dict[str, ErrorScore]:
        """A score for each value of a column, in the file's order."""
        groups: dict[str, list[Outcome]] = {}
        for each in self.outcomes:
            groups.setdefault(each.run.text(column), []).append(each)
        return {name: error_score(rows) for name, rows in groups.items()}

    @property
    def coverage(self) -> Coverage:
        """How many measured steps fall into the ranges of their predictions."""
        return coverage(self.outcomes)

    def mean_of_sources(self, measure: str = "mape") -> float | None:
        """The mean of the sources' means, which weighs each source alike."""
        means = [getattr(each, measure) for each in self.by("source").values()]
        known = [mean for mean in means if mean is not None]
        return statistics.fmean(known) if known else None

    @property
    def not_fitting(self) -> list[str]:
        """Rows that are predicted not to fit into a device, though all of them ran."""
        return [each.run.id for each in self.outcomes if not each.fits]

    def as_dict(self) -> dict[str, Any]:
        """The comparison as it stands in JSON."""
        measures = ("mape", "calibrated_mape", "formula_mape")
        return {
            **self.all.as_dict(),
            "weighted_log_error": self.weighted_error,
            "pairs_in_order": None if self.pair_order is None else self.pair_order._asdict(),
            "rows": [each.as_dict() for each in self.outcomes],
            "scored": self.all.rows,
            "not_fitting": self.not_fitting,
            "mean_of_sources": {name: self.mean_of_sources(name) for name in measures},
            "developed": self.developed.as_dict(),
            "held_out": self.held_out.as_dict(),
            "by_source": {name: each.as_dict() for name, each in self.by("source").items()},
            "by_machine": {name: each.as_dict() for name, each in self.by("machine").items()},
            "coverage": self.coverage.as_dict(),
            "ranking": None if self.ranking is None else self.ranking.as_dict(),
            "formula_ranking": (
                None if self.formula_ranking is None else self.formula_ranking.as_dict()
            ),
        }


def error_score(outcomes: Sequence[Outcome]) -> ErrorScore:
    """The errors of these rows; those that do not count are left out but for `unpredicted`."""
    scored = [each for each in outcomes if each.scored]
    errors = [each.error for each in scored if each.error is not None]
    return ErrorScore(
        rows=len(scored),
        unpredicted=sum(each.predicted_s is None for each in outcomes),
        mape=statistics.fmean(map(abs, errors)) if errors else None,
        median_error=statistics.median(map(abs, errors)) if errors else None,
        bias=statistics.fmean(errors) if errors else None,
        worst=max(scored, key=lambda each: abs(each.error or 0.0), default=None),
        calibrated_mape=mean_error(scored, lambda each: each.calibrated_s),
        formula_mape=mean_error(scored, lambda each: each.formula_s),
    )


def validate_published(
    path: Path | None = None,
    sources: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    shipped: str = RUNS,
) -> Comparison:
    """Predict every row of a file, or those whose source or id has one of the given words in it;
    without a file those of a table that comes with simgpt.

    The formula's utilisations are those of all rows of the file, whatever is chosen; factors of
    stacks are fitted on the chosen rows.
    """
    chosen, runs = chosen_runs(path, sources, shipped)
    outcomes = predict_runs(chosen, progress, _best_plan)
    outcomes = with_anatomy(calibrated(with_formula(outcomes, _reached(runs, outcomes))))
    return Comparison(tuple(outcomes), rankings(outcomes), rankings(outcomes, formula=True))


def chosen_runs(
    path: Path | None, sources: Sequence[str], shipped: str = RUNS
) -> tuple[list[PublishedRun], list[PublishedRun]]:
    """The rows of a file with one of the given words in their source or id, and all of its rows."""
    runs = read_runs(path, shipped)
    return chosen_of(runs, sources), runs


def chosen_of(runs: Sequence[PublishedRun], sources: Sequence[str]) -> list[PublishedRun]:
    """Rows with one of the given words in their source or id; a RunsError where there is none."""
    chosen = [run for run in runs if _is_chosen(run, sources)]
    if not chosen:
        known = ", ".join(dict.fromkeys(run.source for run in runs))
        raise RunsError(f"no row is from {' or '.join(sources)}; sources: {known}")
    return chosen


def _best_plan(
    gpt: GPT, machine: Machine, devices: int, batch: int, fixed: Mapping[str, Any]
) -> Plan:
    placed = scheduler(machine, devices)
    return best_plan(gpt, machine, devices, batch, fixed=fixed, placement=placed).plan


def _is_chosen(run: PublishedRun, sources: Sequence[str]) -> bool:
    """Whether a row has one of the words in its source or id, or none is asked for."""
    place = f"{run.source}\n{run.id}".lower()
    return not sources or any(source.lower() in place for source in sources)


def _reached(runs: Sequence[PublishedRun], outcomes: Sequence[Outcome]) -> dict[str, Reached]:
    """What share of its ideal every scored row of a file reached that has one."""
    predicted = {each.run.id: (each.ideal, each.measured_s) for each in outcomes}
    found: dict[str, Reached] = {}
    for run in runs:
        if unscored(run):
            continue
        ideal, measured = predicted[run.id] if run.id in predicted else _unpredicted(run)
        if ideal and measured:
            found[run.id] = Reached(run.source, ideal.family, ideal.step_s / measured)
    return found


def _unpredicted(run: PublishedRun) -> tuple[Ideal | None, float | None]:
    """The ideal and the measured step of a row that is not predicted now."""
    try:
        case, machine = case_as_read(run), machine_of(run)
        return ideal_of(run, case, machine), measured_s(run, case.asked, machine)
    except SimgptError:
        return None, None
